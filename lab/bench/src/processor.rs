//! Processor time, user and system, of the processes of a farm and of this one.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike as _,
};

use crate::{error::BenchError, farm::BenchFarm, report::processors};

/// What builds and actions run: processes that ended below workers and executors.
const COMMANDS: &str = "commands";
/// Processes that live below workers and executors: shims, and sandboxes that are reused.
const SHIMS: &str = "shims";
/// This process, which is the client of the farm.
const CLIENT: &str = "bench (the client)";
/// Microseconds of a tick, the unit of times in `/proc/PID/stat`. Linux shows 100 ticks per second to programs.
const TICK_US: f64 = 10_000.0;

/// Processor time in microseconds by name of a process.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ProcessorTimes(BTreeMap<String, f64>);

impl ProcessorTimes {
    /// Reads the times since the start of each process.
    pub(crate) fn read(farm: &BenchFarm) -> Result<Self, BenchError> {
        let failed = |error: &dyn std::error::Error| BenchError::new("reading the processes in /proc", error);
        let mut processes = Vec::new();
        for entry in std::fs::read_dir("/proc").map_err(|error| failed(&error))? {
            let name = entry.map_err(|error| failed(&error))?.file_name();
            // A process may end before its file is read.
            if let Some(pid) = name.to_str().and_then(|name| name.parse().ok())
                && let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat"))
                && let Some(process) = Process::parse(pid, &stat)
            {
                processes.push(process);
            }
        }
        let mut named: BTreeMap<u32, &str> =
            farm.endpoints.processes.iter().map(|(name, pid)| (*pid, name.as_str())).collect();
        named.insert(farm.endpoints.pid, "up");
        let mut times = account(&processes, &named);
        times.insert(CLIENT.to_owned(), of_this_process()?);
        Ok(Self(times))
    }

    /// The times that passed after `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let before = |name| earlier.0.get(name).copied().unwrap_or_default();
        Self(self.0.iter().map(|(name, time)| (name.clone(), (time - before(name)).max(0.0))).collect())
    }

    /// Adds the times of `more`.
    pub(crate) fn add(&mut self, more: &Self) {
        for (name, time) in &more.0 {
            *self.0.entry(name.clone()).or_default() += time;
        }
    }

    /// The times divided by `count`.
    pub(crate) fn per(&self, count: f64) -> BTreeMap<String, f64> {
        self.0.iter().map(|(name, time)| (name.clone(), time / count)).collect()
    }

    /// Time of everything that this run caused.
    pub(crate) fn all(&self) -> f64 {
        self.0.values().sum()
    }

    /// Time of the services, the servers and the shims: without the commands that they run, and without the client.
    pub(crate) fn of_farm(&self) -> f64 {
        self.0
            .iter()
            .filter(|(name, _)| ![COMMANDS, CLIENT].contains(&name.as_str()))
            .map(|(_, time)| time)
            .sum()
    }
}

/// Processor time in microseconds of this process.
pub(crate) fn of_this_process() -> Result<f64, BenchError> {
    used_by(UsageWho::RUSAGE_SELF)
}

/// Processor time in microseconds of the child processes that ended.
pub(crate) fn of_ended_children() -> Result<f64, BenchError> {
    used_by(UsageWho::RUSAGE_CHILDREN)
}

fn used_by(who: UsageWho) -> Result<f64, BenchError> {
    let usage = getrusage(who)
        .map_err(|error| BenchError::new("reading the processor time of this process", &error))?;
    Ok((usage.user_time() + usage.system_time()).num_microseconds() as f64)
}

/// The processors at one time.
pub(crate) struct Machine {
    at: Instant,
    busy: f64,
}

impl Machine {
    pub(crate) fn now() -> Result<Self, BenchError> {
        Ok(Self { at: Instant::now(), busy: of_machine()? })
    }

    /// Time since then, and the share of the processors that others used in it, if this run used `own` microseconds.
    pub(crate) fn used_by_others(&self, own: f64) -> Result<(Duration, f64), BenchError> {
        let took = self.at.elapsed();
        let others = (of_machine()? - self.busy - own).max(0.0);
        let all = took.as_secs_f64() * 1e6 * processors().max(1) as f64;
        Ok((took, others / all))
    }
}

/// Processor time in microseconds since the start of the machine, of all processes, of interrupts, and of other virtual
/// machines that delayed this one.
fn of_machine() -> Result<f64, BenchError> {
    let text = std::fs::read_to_string("/proc/stat");
    let text = text.map_err(|error| BenchError::new("reading /proc/stat", &error))?;
    busy(&text).ok_or_else(|| BenchError::plain("/proc/stat does not show the time of all processors"))
}

/// Sum of the fields user, nice, system, irq, softirq and steal: without idle and iowait.
fn busy(stat: &str) -> Option<f64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
    let fields: Vec<f64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
    Some([0, 1, 2, 5, 6, 7].into_iter().filter_map(|field: usize| fields.get(field)).sum::<f64>() * TICK_US)
}

/// A process, from `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: u32,
    parent: u32,
    /// Its own time in ticks.
    own: u32,
    /// Time in ticks of its children that ended, and of theirs.
    ended: u32,
}

impl Process {
    fn parse(pid: u32, stat: &str) -> Option<Self> {
        // The name, in parentheses, may contain anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number)?.parse::<u32>().ok();
        Some(Self { pid, parent: field(1)?, own: field(11)? + field(12)?, ended: field(13)? + field(14)? })
    }
}

/// Time in microseconds by name: of the named processes, and of all processes below them.
fn account(processes: &[Process], named: &BTreeMap<u32, &str>) -> BTreeMap<String, f64> {
    let parents: BTreeMap<u32, u32> = processes.iter().map(|process| (process.pid, process.parent)).collect();
    let is_below = |pid: u32| {
        std::iter::successors(Some(pid), |pid| parents.get(pid).copied())
            .take(processes.len())
            .any(|ancestor| named.contains_key(&ancestor))
    };
    let mut times = BTreeMap::new();
    let mut add = |name: &str, ticks: u32| {
        *times.entry(name.to_owned()).or_default() += f64::from(ticks) * TICK_US;
    };
    for process in processes {
        match named.get(&process.pid) {
            Some(name) => add(name, process.own),
            None if is_below(process.parent) => add(SHIMS, process.own),
            None => continue,
        }
        add(COMMANDS, process.ended);
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent: u32, own: u32, ended: u32) -> Process {
        Process { pid, parent, own, ended }
    }

    #[test]
    fn the_name_of_a_process_may_contain_anything() {
        let stat = "7 (a) b (c) S 3 1 1 0 -1 4194560 1 2 3 4 10 20 300 400 20 0 1 0 5";
        assert_eq!(Process::parse(7, stat), Some(process(7, 3, 30, 700)));
        assert_eq!(Process::parse(7, "7 (a) S 3"), None);
    }

    #[test]
    fn a_machine_is_busy_while_it_neither_idles_nor_waits_for_disks() {
        let stat = "cpu  1 2 4 1000 1000 8 16 32 1000 1000\ncpu0 5 5 5 5\n";
        assert_eq!(busy(stat), Some(63.0 * TICK_US));
        assert_eq!(busy("intr 5\n"), None);
    }

    #[test]
    fn each_tick_of_the_farm_counts_once() {
        let processes = [
            process(1, 0, 1000, 1000),
            process(2, 1, 5, 0),
            process(3, 2, 7, 1),
            process(4, 3, 11, 13),
            process(5, 4, 17, 19),
            process(6, 1, 1000, 1000),
        ];
        let times = account(&processes, &BTreeMap::from([(2, "up"), (3, "executor")]));
        let ticks = |name: &str| times.get(name).map(|time| time / TICK_US);
        assert_eq!(ticks("up"), Some(5.0));
        assert_eq!(ticks("executor"), Some(7.0));
        assert_eq!(ticks(SHIMS), Some(28.0));
        assert_eq!(ticks(COMMANDS), Some(33.0));
        assert_eq!(times.len(), 4);
    }

    #[test]
    fn the_farm_is_neither_client_nor_commands() {
        let times = |values: [f64; 3]| {
            let names = ["executor", COMMANDS, CLIENT].map(str::to_owned);
            ProcessorTimes(names.into_iter().zip(values).collect())
        };
        let mut sum = times([10.0, 100.0, 1000.0]).since(&times([4.0, 0.0, 0.0]));
        sum.add(&times([1.0, 1.0, 1.0]));
        assert!((sum.of_farm() - 7.0).abs() < f64::EPSILON);
    }
}
