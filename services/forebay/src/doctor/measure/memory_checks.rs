//! Whether memory behaves the same in each run: huge pages, swap space, and layout of addresses.

use super::{Finding, UNREADABLE, files::Reading, machine::Machine, unknown};

/// Judges transparent huge pages, which a program gets or not depending on the state of the memory.
pub(super) fn huge_pages(machine: &Machine) -> Finding {
    const CHECK: &str = "hugepages";
    match &machine.huge_pages {
        Reading::Known(mode) if mode == "always" => Finding::fail(
            CHECK,
            "always: whether a program gets huge pages depends on the free memory",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Reading::Known(mode) => Finding::ok(CHECK, mode.as_str()),
        Reading::Missing => Finding::ok(CHECK, "not supported by this kernel"),
        Reading::Unreadable(why) => unknown(CHECK, why, UNREADABLE),
    }
}

/// Judges whether the kernel moves memory of running programs to form huge pages.
pub(super) fn khugepaged(machine: &Machine) -> Finding {
    const CHECK: &str = "khugepaged";
    const OFF: &str = "echo 0 | sudo tee /sys/kernel/mm/transparent_hugepage/khugepaged/defrag";
    match (&machine.khugepaged, machine.huge_pages.known().map(String::as_str)) {
        (Reading::Known(false), _) => Finding::ok(CHECK, "does not move memory"),
        (Reading::Known(true), Some("never")) => Finding::ok(CHECK, "not used without huge pages"),
        (Reading::Known(true), Some("madvise")) => {
            Finding::warn(CHECK, "moves memory of programs that request huge pages, while they run", OFF)
        }
        (Reading::Known(true), _) => Finding::fail(CHECK, "moves memory of programs while they run", OFF),
        (Reading::Missing, _) => Finding::ok(CHECK, "not supported by this kernel"),
        (Reading::Unreadable(why), _) => unknown(CHECK, why, UNREADABLE),
    }
}

/// Judges swap space: a program whose memory was moved there waits for a disk.
pub(super) fn swap(machine: &Machine) -> Finding {
    const CHECK: &str = "swap";
    match &machine.swaps {
        Reading::Known(swaps) if swaps.is_empty() => Finding::ok(CHECK, "off"),
        Reading::Known(swaps) => Finding::fail(
            CHECK,
            format!("on ({}): a program may wait for memory on a disk", swaps.join(", ")),
            "sudo swapoff --all; remove it from /etc/fstab too",
        ),
        Reading::Missing => Finding::ok(CHECK, "not supported by this kernel"),
        Reading::Unreadable(why) => unknown(CHECK, why, UNREADABLE),
    }
}

/// Judges address space layout randomisation. It is a warning, because a command can run without it, and because the
/// median of several runs includes several layouts.
pub(super) fn aslr(machine: &Machine) -> Finding {
    const CHECK: &str = "aslr";
    match &machine.aslr {
        Reading::Known(0) => Finding::ok(CHECK, "off"),
        Reading::Known(mode) => Finding::warn(
            CHECK,
            format!("on ({mode}): each run has other addresses, and so other conflicts in caches"),
            "run the command by setarch -R; for the whole machine, which is less secure: sudo sysctl kernel.randomize_va_space=0",
        ),
        Reading::Missing => unknown(CHECK, "the kernel does not show it", UNREADABLE),
        Reading::Unreadable(why) => unknown(CHECK, why, UNREADABLE),
    }
}
