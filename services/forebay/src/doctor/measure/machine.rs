//! What `doctor --measure` reads of a machine.

use std::collections::{BTreeMap, BTreeSet};

use super::files::{Files, Reading, processor_list};
use crate::style::one_line;

const PROCESSORS: &str = "sys/devices/system/cpu";
const HUGE_PAGES: &str = "sys/kernel/mm/transparent_hugepage";
/// Makers of virtual machines in the DMI table, for processors whose flags say nothing about a hypervisor.
const VIRTUAL_VENDORS: [&str; 7] =
    ["QEMU", "KVM", "VMware, Inc.", "innotek GmbH", "Xen", "Parallels", "Apple Inc. Virtualization"];
/// Characters of a name that a finding shows.
const NAME_MAX: usize = 60;

/// The state of a machine, which does not change by itself.
#[derive(Debug)]
pub(super) struct Machine {
    /// Numbers of the processors that are online.
    pub(super) processors: BTreeSet<u32>,
    /// Whether a hypervisor runs this machine.
    pub(super) is_virtual: Reading<bool>,
    /// Vendor of the machine or of its hypervisor.
    pub(super) vendor: Option<String>,
    /// The processors of each frequency governor.
    pub(super) governors: Reading<BTreeMap<String, BTreeSet<u32>>>,
    pub(super) turbo: Reading<Turbo>,
    /// Whether cores run several threads at a time, by `smt/active`.
    pub(super) smt: Reading<bool>,
    /// The processors of each physical core.
    pub(super) cores: Reading<BTreeSet<BTreeSet<u32>>>,
    /// Level of the last cache, and the processors of each such cache.
    pub(super) caches: Reading<(u32, BTreeSet<BTreeSet<u32>>)>,
    /// The processors of each NUMA node.
    pub(super) nodes: Reading<Vec<BTreeSet<u32>>>,
    /// Processors on which the kernel starts no process by itself.
    pub(super) isolated: Reading<BTreeSet<u32>>,
    /// Mode of transparent huge pages: `always`, `madvise` or `never`.
    pub(super) huge_pages: Reading<String>,
    /// Whether khugepaged moves memory to form huge pages.
    pub(super) khugepaged: Reading<bool>,
    /// Files and devices for swap space.
    pub(super) swaps: Reading<Vec<String>>,
    /// Mode of address space layout randomisation, 0 to 2.
    pub(super) aslr: Reading<u8>,
}

/// The state of turbo or boost frequencies, and the command that turns them off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turbo {
    pub(super) is_on: bool,
    pub(super) off: &'static str,
}

impl Machine {
    /// Reads all files except those of [`Counters`].
    pub(super) fn read(files: &Files) -> Self {
        let online = files.parsed(&format!("{PROCESSORS}/online"), processor_list);
        let processors = match online {
            Reading::Known(online) if !online.is_empty() => online,
            Reading::Known(_) | Reading::Missing | Reading::Unreadable(_) => files.numbers(PROCESSORS, "cpu"),
        };
        let vendor = files.text("sys/class/dmi/id/sys_vendor").known().map(|name| one_line(name, NAME_MAX));
        Self {
            is_virtual: is_virtual(files, vendor.as_deref()),
            governors: governors(files, &processors),
            turbo: turbo(files, &processors),
            smt: files.parsed(&format!("{PROCESSORS}/smt/active"), switch),
            cores: of_each(files, &processors, "topology/thread_siblings_list", some_processors)
                .map(|cores| cores.into_iter().map(|(_, siblings)| siblings).collect()),
            caches: caches(files, &processors),
            nodes: nodes(files),
            isolated: files.parsed(&format!("{PROCESSORS}/isolated"), processor_list),
            huge_pages: files.parsed(&format!("{HUGE_PAGES}/enabled"), selected),
            khugepaged: files.parsed(&format!("{HUGE_PAGES}/khugepaged/defrag"), switch),
            swaps: files.parsed("proc/swaps", swaps),
            aslr: files.parsed("proc/sys/kernel/randomize_va_space", |text| {
                text.parse().ok().filter(|mode| *mode <= 2)
            }),
            vendor,
            processors,
        }
    }

    /// Whether this is known to be a virtual machine.
    pub(super) fn is_surely_virtual(&self) -> bool {
        self.is_virtual == Reading::Known(true)
    }
}

/// A list of at least one processor.
fn some_processors(text: &str) -> Option<BTreeSet<u32>> {
    processor_list(text).filter(|processors| !processors.is_empty())
}

/// A file that contains 0 or 1.
fn switch(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// The word in brackets, as in `always [madvise] never`.
fn selected(text: &str) -> Option<String> {
    let word = text.split_once('[')?.1.split_once(']')?.0;
    Some(word.to_owned()).filter(|word| ["always", "madvise", "never"].contains(&word.as_str()))
}

/// The values of a file that each processor has, by number of the processor.
fn of_each<T>(
    files: &Files,
    processors: &BTreeSet<u32>,
    name: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Reading<Vec<(u32, T)>> {
    let of = |&number: &u32| {
        files.parsed(&format!("{PROCESSORS}/cpu{number}/{name}"), &parse).map(|value| (number, value))
    };
    processors.iter().map(of).collect()
}

fn is_virtual(files: &Files, vendor: Option<&str>) -> Reading<bool> {
    let flags = match files.text("proc/cpuinfo") {
        Reading::Known(text) => flags(&text)
            .map(|mut flags| flags.any(|flag| flag == "hypervisor"))
            .map_or_else(|| Reading::Unreadable("/proc/cpuinfo has no flags".to_owned()), Reading::Known),
        Reading::Missing => Reading::Missing,
        Reading::Unreadable(why) => Reading::Unreadable(why),
    };
    // Only processors of PCs have this flag.
    if flags.known().is_none() && vendor.is_some_and(|name| VIRTUAL_VENDORS.contains(&name)) {
        return Reading::Known(true);
    }
    flags
}

/// The flags of the first processor in `/proc/cpuinfo`.
fn flags(text: &str) -> Option<impl Iterator<Item = &str>> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(name, _)| name.trim() == "flags").map(|(_, flags)| flags.split_whitespace())
}

fn governors(files: &Files, processors: &BTreeSet<u32>) -> Reading<BTreeMap<String, BTreeSet<u32>>> {
    let name = |text: &str| {
        let is_name = !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        is_name.then(|| one_line(text, NAME_MAX))
    };
    of_each(files, processors, "cpufreq/scaling_governor", name).map(|all| {
        let mut governors = BTreeMap::<String, BTreeSet<u32>>::new();
        for (number, governor) in all {
            governors.entry(governor).or_default().insert(number);
        }
        governors
    })
}

fn turbo(files: &Files, processors: &BTreeSet<u32>) -> Reading<Turbo> {
    const INTEL: &str = "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo";
    const ALL: &str = "echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost";
    const EACH: &str = "echo 0 | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/boost";
    files
        .parsed(&format!("{PROCESSORS}/intel_pstate/no_turbo"), switch)
        .map(|off| Turbo { is_on: !off, off: INTEL })
        .or_else(|| {
            files
                .parsed(&format!("{PROCESSORS}/cpufreq/boost"), switch)
                .map(|is_on| Turbo { is_on, off: ALL })
        })
        .or_else(|| {
            of_each(files, processors, "cpufreq/boost", switch)
                .map(|all| Turbo { is_on: all.iter().any(|(_, is_on)| *is_on), off: EACH })
        })
}

/// The last-level caches. Instruction caches are left out.
fn caches(files: &Files, processors: &BTreeSet<u32>) -> Reading<(u32, BTreeSet<BTreeSet<u32>>)> {
    let of = |number: &u32| {
        let folder = format!("{PROCESSORS}/cpu{number}/cache");
        let indexes =
            files.numbers(&folder, "index").into_iter().map(|index| format!("{folder}/index{index}"));
        let has_data = |index: &String| {
            files.text(&format!("{index}/type")).known().is_none_or(|it| it != "Instruction")
        };
        let level = |index: String| {
            files
                .parsed(&format!("{index}/level"), |text| text.parse::<u32>().ok())
                .map(|level| (level, index))
        };
        let levels: Reading<Vec<(u32, String)>> = indexes.filter(has_data).map(level).collect();
        match levels.map(|levels| levels.into_iter().max()) {
            Reading::Known(Some((level, index))) => files
                .parsed(&format!("{index}/shared_cpu_list"), some_processors)
                .map(|shared| (level, shared)),
            Reading::Known(None) | Reading::Missing => Reading::Missing,
            Reading::Unreadable(why) => Reading::Unreadable(why),
        }
    };
    let all: Reading<Vec<(u32, BTreeSet<u32>)>> = processors.iter().map(of).collect();
    all.map(|all| {
        let level = all.iter().map(|(level, _)| *level).max().unwrap_or_default();
        (level, all.into_iter().map(|(_, shared)| shared).collect())
    })
}

fn nodes(files: &Files) -> Reading<Vec<BTreeSet<u32>>> {
    const NODES: &str = "sys/devices/system/node";
    let of = |number| files.parsed(&format!("{NODES}/node{number}/cpulist"), processor_list);
    files.numbers(NODES, "node").into_iter().map(of).collect()
}

/// The first column of all lines but the first, which has the names of the columns.
fn swaps(text: &str) -> Option<Vec<String>> {
    let mut lines = text.lines();
    lines.next().filter(|line| line.starts_with("Filename"))?;
    lines.map(|line| Some(one_line(line.split_whitespace().next()?, NAME_MAX))).collect()
}

/// Counters and averages that change while the machine runs.
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) ticks: Reading<Ticks>,
    pub(super) throttled: Reading<Throttled>,
    /// Percentage of the last 10 seconds in which some process waited for a processor.
    pub(super) pressure: Reading<f64>,
    /// Load average of one minute.
    pub(super) load: Reading<f64>,
}

/// Time of all processors together since the start of the machine, in ticks of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticks {
    pub(super) busy: u64,
    pub(super) steal: u64,
    pub(super) all: u64,
}

/// How often processors lowered their frequency because of their temperature since the start of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Throttled {
    pub(super) cores: u64,
    pub(super) packages: u64,
}

impl Counters {
    /// Reads the counters as they are now.
    pub(super) fn read(files: &Files) -> Self {
        let processors = files.numbers(PROCESSORS, "cpu");
        let count = |name: &str| {
            of_each(files, &processors, &format!("thermal_throttle/{name}"), |text| text.parse::<u64>().ok())
                .map(|all| all.into_iter().map(|(_, count)| count).collect::<Vec<_>>())
        };
        let packages = count("package_throttle_count");
        Self {
            ticks: files.parsed("proc/stat", ticks),
            // All processors of a package show its count.
            throttled: count("core_throttle_count").map(|cores| Throttled {
                cores: cores.iter().fold(0, |sum, count| sum.saturating_add(*count)),
                packages: packages
                    .known()
                    .and_then(|counts| counts.iter().max().copied())
                    .unwrap_or_default(),
            }),
            pressure: files.parsed("proc/pressure/cpu", |text| {
                let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
                number(some.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?)
            }),
            load: files.parsed("proc/loadavg", |text| number(text.split_whitespace().next()?)),
        }
    }
}

/// A finite number that is not negative.
fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

/// The line `cpu` of `/proc/stat`. Time of guests is part of the time of users.
fn ticks(text: &str) -> Option<Ticks> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Option<Vec<u64>> = line.split_whitespace().take(8).map(|field| field.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal] = <[u64; 8]>::try_from(fields?).ok()?;
    let busy = [user, nice, system, irq, softirq].into_iter().try_fold(0, u64::checked_add)?;
    let all = [busy, idle, iowait, steal].into_iter().try_fold(0, u64::checked_add)?;
    Some(Ticks { busy, steal, all })
}
