//! Whether the frequency of the processors changes: governor, turbo, and throttling because of heat.

use super::{
    Finding, UNREADABLE,
    files::{Reading, list_text},
    machine::{Counters, Machine},
    unknown,
};

/// Judges the frequency governors of all processors.
pub(super) fn governor(machine: &Machine) -> Finding {
    const CHECK: &str = "governor";
    match &machine.governors {
        Reading::Known(governors) => {
            let of =
                |(name, processors): (&String, _)| format!("{name} on processors {}", list_text(processors));
            let found = governors.iter().map(of).collect::<Vec<_>>().join(", ");
            if governors.keys().all(|name| name == "performance") {
                return Finding::ok(CHECK, found);
            }
            Finding::fail(
                CHECK,
                format!("{found}: the frequency follows the load"),
                "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
            )
        }
        Reading::Missing if machine.is_surely_virtual() => {
            unknown(CHECK, "a virtual machine does not show it", "set it on the host (performance)")
        }
        Reading::Missing => unknown(
            CHECK,
            "the kernel does not control the frequency (cpufreq)",
            "select constant performance in the firmware (BIOS), or load a cpufreq driver",
        ),
        Reading::Unreadable(why) => unknown(CHECK, why, UNREADABLE),
    }
}

/// Judges turbo or boost frequencies, which depend on temperature and on the number of busy cores.
pub(super) fn turbo(machine: &Machine) -> Finding {
    const CHECK: &str = "turbo";
    match &machine.turbo {
        Reading::Known(turbo) if turbo.is_on => Finding::fail(
            CHECK,
            "on: the frequency depends on temperature and on the number of busy cores",
            turbo.off,
        ),
        Reading::Known(_) => Finding::ok(CHECK, "off"),
        Reading::Missing if machine.is_surely_virtual() => {
            unknown(CHECK, "a virtual machine does not show it", "turn it off on the host")
        }
        Reading::Missing => {
            unknown(CHECK, "the kernel has no switch for it", "turn it off in the firmware (BIOS)")
        }
        Reading::Unreadable(why) => unknown(CHECK, why, UNREADABLE),
    }
}

/// Judges how often the processors became too hot, during the sample and since the start of the machine.
pub(super) fn throttling(machine: &Machine, before: &Counters, after: &Counters) -> Finding {
    const CHECK: &str = "throttling";
    const COOL: &str =
        "improve the cooling, or limit the frequency: sudo cpupower frequency-set --max FREQUENCY";
    let now = match &after.throttled {
        Reading::Known(now) => *now,
        Reading::Missing if machine.is_surely_virtual() => {
            return unknown(CHECK, "a virtual machine has no counters of it", "look at those of the host");
        }
        Reading::Missing => {
            let advice = "compare the frequency under load: grep MHz /proc/cpuinfo";
            return unknown(CHECK, "the kernel has no counters of it for these processors", advice);
        }
        Reading::Unreadable(why) => return unknown(CHECK, why, UNREADABLE),
    };
    let found = format!(
        "cores were throttled {} times and packages {} times since the start of the machine",
        now.cores, now.packages
    );
    if before.throttled.known().is_some_and(|before| *before != now) {
        return Finding::fail(CHECK, format!("{found}, also during this check"), COOL);
    }
    if now.cores > 0 || now.packages > 0 {
        return Finding::warn(CHECK, found, COOL);
    }
    Finding::ok(CHECK, "never throttled since the start of the machine")
}
