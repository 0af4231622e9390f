//! What processes share with each other: the host, cores, caches and memory nodes.

use std::collections::BTreeSet;

use super::{
    Finding, UNREADABLE,
    files::{Reading, list_text},
    machine::Machine,
    unknown,
};

/// Judges whether other machines of the same host may disturb this one.
pub(super) fn virtualisation(machine: &Machine) -> Finding {
    const CHECK: &str = "virtual";
    const BARE: &str = "measure on a physical machine, or on a host without other machines";
    let vendor = machine.vendor.as_deref().unwrap_or("an unknown vendor");
    match &machine.is_virtual {
        Reading::Known(true) => Finding::fail(
            CHECK,
            format!(
                "a virtual machine ({vendor}): its host sets the frequency, and other machines may use its caches and memory"
            ),
            BARE,
        ),
        Reading::Known(false) => Finding::ok(CHECK, format!("a physical machine ({vendor})")),
        Reading::Missing => unknown(CHECK, "/proc/cpuinfo does not exist", BARE),
        Reading::Unreadable(why) => unknown(CHECK, &format!("{why}; vendor: {vendor}"), BARE),
    }
}

/// Judges simultaneous multithreading: two threads of a core share all its units.
pub(super) fn smt(machine: &Machine) -> Finding {
    const CHECK: &str = "smt";
    let siblings = machine.cores.known().and_then(|cores| cores.iter().find(|core| core.len() > 1));
    let is_active = match (&machine.smt, siblings) {
        (_, Some(_)) => true,
        (Reading::Known(active), None) => *active,
        (Reading::Missing, None) if machine.cores.known().is_some() => false,
        (Reading::Missing, None) => return unknown(CHECK, "the kernel does not show it", UNREADABLE),
        (Reading::Unreadable(why), None) => return unknown(CHECK, why, UNREADABLE),
    };
    if is_active {
        let example = siblings.map(|core| format!(", such as processors {}", list_text(core)));
        return Finding::fail(
            CHECK,
            format!("on: threads of one core{} slow each other down", example.unwrap_or_default()),
            "echo off | sudo tee /sys/devices/system/cpu/smt/control",
        );
    }
    if machine.is_surely_virtual() {
        return Finding::ok(CHECK, "off, as far as a virtual machine sees it");
    }
    Finding::ok(CHECK, "off")
}

/// Judges whether one core remains for everything that is not measured.
pub(super) fn cores(machine: &Machine) -> Finding {
    const CHECK: &str = "cores";
    let cores = match &machine.cores {
        Reading::Known(cores) => cores.len(),
        Reading::Missing => return unknown(CHECK, "the kernel does not show the topology", UNREADABLE),
        Reading::Unreadable(why) => return unknown(CHECK, why, UNREADABLE),
    };
    let nodes = match &machine.nodes {
        Reading::Known(nodes) => counted(nodes.len(), "NUMA node"),
        Reading::Missing => "no list of NUMA nodes".to_owned(),
        Reading::Unreadable(why) => format!("NUMA nodes unknown ({why})"),
    };
    let processors = counted(machine.processors.len(), "processor");
    // The cores of a virtual machine may be threads of the same core of its host.
    let kind = if machine.is_surely_virtual() { "virtual core" } else { "physical core" };
    let found = format!("{}, {processors}, {nodes}", counted(cores, kind));
    if cores > 1 {
        return Finding::ok(CHECK, found);
    }
    Finding::warn(
        CHECK,
        format!("{found}: the executor and the kernel use the core of the measured program"),
        "measure on a machine with two or more cores",
    )
}

fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Number of caches whose processors a finding shows.
const CACHES_SHOWN: usize = 4;

/// Shows which processors share a last-level cache. Measurements that run one at a time are not disturbed by that.
pub(super) fn caches(machine: &Machine) -> Finding {
    const CHECK: &str = "caches";
    match &machine.caches {
        Reading::Known((level, caches)) => {
            let lists: Vec<String> = caches.iter().take(CACHES_SHOWN).map(list_text).collect();
            let more = match caches.len().saturating_sub(CACHES_SHOWN) {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            let found = format!("L{level} of processors {}{more}", lists.join(" and of "));
            let are_shared = |shared: &BTreeSet<u32>| {
                let cores = machine.cores.known().map_or(0, |cores| {
                    cores.iter().filter(|core| core.iter().any(|number| shared.contains(number))).count()
                });
                cores > 1
            };
            if caches.iter().any(are_shared) {
                let found =
                    format!("{found}: measurements at the same time share it, one at a time is undisturbed");
                return Finding::ok(CHECK, found);
            }
            Finding::ok(CHECK, found)
        }
        Reading::Missing => {
            unknown(CHECK, "the kernel does not show them", "see the data sheet of the processor")
        }
        Reading::Unreadable(why) => unknown(CHECK, why, UNREADABLE),
    }
}

/// Shows on which processors the kernel starts no process by itself.
pub(super) fn isolated(machine: &Machine) -> Finding {
    const CHECK: &str = "isolated";
    match &machine.isolated {
        Reading::Known(none) if none.is_empty() => {
            Finding::ok(CHECK, "none: any process may run on any processor (see load)")
        }
        Reading::Known(some) => {
            let found =
                format!("processors {}: only processes that are pinned to them run there", list_text(some));
            Finding::ok(CHECK, found)
        }
        Reading::Missing => {
            unknown(CHECK, "the kernel does not show them", "look for isolcpus in /proc/cmdline")
        }
        Reading::Unreadable(why) => unknown(CHECK, why, UNREADABLE),
    }
}

/// Judges whether commands can leave the processors of a slot that owns some (`slot_cores`).
pub(super) fn binding(binds: bool) -> Finding {
    const CHECK: &str = "binding";
    if binds {
        return Finding::ok(
            CHECK,
            "control groups (cpuset): commands cannot leave the cores of their slot (slot_cores)",
        );
    }
    Finding::warn(
        CHECK,
        "affinity only: commands start on the cores of their slot (slot_cores), but can move to others",
        "start the executor as root, and in a container with the controller cpuset and its own control groups",
    )
}
