//! What else happens on the processors of a command while it runs: for executions that ask to be measured. Others do not
//! pay for it: reading the counters of all processors takes some tens of microseconds.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use model::Interference;
use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::Pid,
};

use crate::processors::SYSTEM;

/// Mount point of the kernel's process information.
const PROC: &str = "/proc";
/// Microseconds of a tick, in which the kernel shows times of processors (`USER_HZ`).
const TICK_US: u64 = 10_000;
/// Positions of the ticks among the numbers of a processor in `/proc/stat`: with nothing to do, waiting for a disk, and
/// given to others by the host.
const IDLE: usize = 3;
const WAIT: usize = 4;
const STEAL: usize = 7;

/// Counters of the processors of a command since its start.
#[derive(Debug)]
pub(crate) struct InterferenceWatch {
    sources: Sources,
    own: bool,
    begun: Instant,
    before: Counters,
}

/// Counters from the start of a command to its end.
#[derive(Debug)]
pub(crate) struct Watched {
    watch: InterferenceWatch,
    after: Counters,
    elapsed: Duration,
}

/// What is read, and for which processors.
#[derive(Debug)]
struct Sources {
    proc: PathBuf,
    system: PathBuf,
    /// Control groups around the executor that limit its processor time.
    groups: Vec<PathBuf>,
    /// Numbers of the processors that a command can use.
    processors: Vec<u16>,
}

/// Ticks of a processor.
#[derive(Debug, Clone, Copy, Default)]
struct Ticks {
    /// Ticks in which it had nothing to do.
    idle: u64,
    steal: u64,
}

#[derive(Debug, Default)]
struct Counters {
    ticks: BTreeMap<u16, Ticks>,
    throttled_periods: u64,
    thermal_throttles: u64,
}

impl InterferenceWatch {
    /// Starts to watch the processors of a slot, which owns `cores` or shares all with others if there are none.
    pub(crate) fn start(cores: &[u16]) -> Self {
        let processors = if cores.is_empty() { usable() } else { cores.to_vec() };
        let groups = sensors::limiting_processors(Path::new(PROC));
        let sources = Sources { proc: PROC.into(), system: SYSTEM.into(), groups, processors };
        Self::at(sources, !cores.is_empty())
    }

    fn at(sources: Sources, own: bool) -> Self {
        let before = sources.read();
        Self { sources, own, begun: Instant::now(), before }
    }

    /// Ends the watch when the command has ended.
    pub(crate) fn end(self) -> Watched {
        let (after, elapsed) = (self.sources.read(), self.begun.elapsed());
        Watched { watch: self, after, elapsed }
    }

    fn between(&self, after: &Counters, elapsed: Duration, cpu: Duration) -> Option<Interference> {
        let both = self.before.ticks.iter().filter_map(|(id, before)| Some((before, after.ticks.get(id)?)));
        let (mut processors, mut idle, mut steal) = (0_u32, 0_u64, 0_u64);
        for (before, after) in both {
            processors += 1;
            idle += after.idle.saturating_sub(before.idle) * TICK_US;
            steal += after.steal.saturating_sub(before.steal) * TICK_US;
        }
        let available = micros(elapsed).saturating_mul(u64::from(processors));
        let since = |before: u64, after: u64| after.saturating_sub(before);
        (processors > 0).then(|| Interference {
            processors,
            own_processors: self.own,
            steal_us: steal,
            other_us: available.saturating_sub(idle).saturating_sub(steal).saturating_sub(micros(cpu)),
            throttled_periods: since(self.before.throttled_periods, after.throttled_periods),
            thermal_throttles: since(self.before.thermal_throttles, after.thermal_throttles),
        })
    }
}

impl Watched {
    /// What happened beside commands that used `cpu`; `None` if the kernel does not show it.
    pub(crate) fn beside(&self, cpu: Duration) -> Option<Interference> {
        self.watch.between(&self.after, self.elapsed, cpu)
    }
}

impl Sources {
    /// Reads all counters. What the kernel does not show counts as 0.
    fn read(&self) -> Counters {
        let stat = fs::read_to_string(self.proc.join("stat")).unwrap_or_default();
        let ticks =
            stat.lines().filter_map(ticks_of).filter(|(id, _)| self.processors.contains(id)).collect();
        Counters {
            ticks,
            throttled_periods: self.groups.iter().filter_map(|group| throttled_periods(group)).sum(),
            thermal_throttles: self.processors.iter().map(|id| self.thermal_throttles(*id)).sum(),
        }
    }

    /// How often a processor was slowed down because it was too hot; virtual machines do not count that.
    fn thermal_throttles(&self, id: u16) -> u64 {
        let folder = self.system.join(format!("cpu{id}/thermal_throttle"));
        let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        ["core_throttle_count", "package_throttle_count"].into_iter().filter_map(number).sum()
    }
}

/// The processors that this process may use.
fn usable() -> Vec<u16> {
    let most = u16::try_from(CpuSet::count()).unwrap_or(u16::MAX);
    // Without the set nothing is measured.
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..most).filter(|id| set.is_set(usize::from(*id)).unwrap_or(false)).collect()
}

/// The number of a processor and its ticks, from a line such as `cpu3 11 22 33 44 55 66 77 88 0 0`.
fn ticks_of(line: &str) -> Option<(u16, Ticks)> {
    let (id, numbers) = line.strip_prefix("cpu")?.split_once(' ')?;
    let numbers: Vec<u64> =
        numbers.split_ascii_whitespace().map_while(|number| number.parse().ok()).collect();
    let at = |place: usize| numbers.get(place).copied();
    let idle = at(IDLE)?.saturating_add(at(WAIT)?);
    Some((id.parse().ok()?, Ticks { idle, steal: at(STEAL).unwrap_or_default() }))
}

fn throttled_periods(group: &Path) -> Option<u64> {
    let text = fs::read_to_string(group.join("cpu.stat")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.trim().parse().ok())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, path: &str, text: &str) {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn what_is_neither_idle_nor_the_commands_own_was_used_by_others() {
        let machine = tempfile::tempdir().unwrap();
        let folder = machine.path();
        let write = |path: &str, text: &str| write(folder, path, text);
        write("stat", "cpu 9 9 9 9\ncpu0 5 5 5 100 10 5 5 7 0 0\ncpu1 5 5 5 100 10 5 5 7 0 0\nintr 1\n");
        write("group/cpu.stat", "nr_periods 9\nnr_throttled 3\n");
        write("cpu1/thermal_throttle/core_throttle_count", "4\n");
        let watch = |processors: &[u16]| {
            let groups = vec![folder.join("group")];
            let (proc, system) = (folder.to_owned(), folder.to_owned());
            InterferenceWatch::at(Sources { proc, system, groups, processors: processors.to_vec() }, true)
        };
        let (both, first, missing) = (watch(&[0, 1]), watch(&[0]), watch(&[7]));
        // Of two seconds, processor 0 was idle for 1.2 and stolen for 0.1, processor 1 was busy for all of them.
        write("stat", "cpu0 5 5 5 200 30 5 5 17 0 0\ncpu1 205 5 5 100 10 5 5 7 0 0\n");
        write("group/cpu.stat", "nr_periods 19\nnr_throttled 5\n");
        write("cpu1/thermal_throttle/core_throttle_count", "5\n");
        let seen = |watch: &InterferenceWatch| {
            watch.between(&watch.sources.read(), Duration::from_secs(2), Duration::from_millis(500))
        };
        let expected = Interference {
            processors: 2,
            own_processors: true,
            steal_us: 100_000,
            other_us: 4_000_000 - 1_200_000 - 100_000 - 500_000,
            throttled_periods: 2,
            thermal_throttles: 1,
        };
        assert_eq!(seen(&both), Some(expected));
        let first = seen(&first).unwrap();
        assert_eq!((first.processors, first.other_us, first.thermal_throttles), (1, 200_000, 0));
        assert_eq!(seen(&missing), None, "the kernel does not show that processor");
    }

    #[test]
    fn a_busy_process_beside_a_command_is_seen_on_this_machine() {
        let watch = InterferenceWatch::start(&[]);
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {}
        let seen = watch.end().beside(Duration::ZERO).unwrap();
        // Of two hundred milliseconds, this thread may not have had all.
        assert!(seen.other_us + seen.steal_us > 100_000, "{seen:?}");
    }
}
