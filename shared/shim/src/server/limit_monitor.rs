//! Enforces the limits of a command: measures the usage of all its processes, often enough and not too often.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use super::budget::{Budget, Spent, cpu_of_shim};
use super::cleaner::{Cleaner, Private};
use super::tree::{Alive, Process, alive, resident};
use crate::model::{Limit, Limits, Over};

/// Time between two measurements of values that can grow at any speed: memory, processes, files.
const INTERVAL: Duration = Duration::from_millis(20);
/// Bounds for the time between two measurements of processor time: the kernel's resolution, and the maximum while
/// much of the limit is left.
const CPU_INTERVAL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Measuring uses at most one part in this many of a processor, unless that would be too late.
const SHARE: u32 = 10;
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Processes of a wrapper: itself, and the first of the namespace that it creates.
const WRAPPER: u64 = 2;

/// Bytes per process that the status file of a wrapper may use on disk; it is in memory and has no name.
const STATUS: u64 = 4096;

/// Enforces the limits of one command.
#[derive(Debug)]
pub(crate) struct LimitMonitor {
    limits: Limits,
    /// Number of processes that belong to the wrapper.
    foreign: u64,
    processors: u32,
    check_at: Instant,
    /// Processor time at the last measurement.
    cpu: Duration,
}

impl LimitMonitor {
    /// For a command that was just started; `None` if there is nothing to enforce.
    pub(crate) fn new(limits: Limits, wrapper: bool) -> Option<Self> {
        if !Self::is_wanted(&limits) {
            return None;
        }
        let processors = available_parallelism().ok().and_then(|count| u32::try_from(count.get()).ok());
        let foreign = if wrapper { WRAPPER } else { 0 };
        let check_at = Instant::now() + CPU_INTERVAL.0;
        Some(Self { limits, foreign, processors: processors.unwrap_or(1), check_at, cpu: Duration::ZERO })
    }

    /// Whether there are limits that the kernel does not enforce on its own.
    pub(crate) fn is_wanted(limits: &Limits) -> bool {
        Limits { file_bytes: None, user_processes: None, ..*limits } != Limits::default()
    }

    /// When to measure next.
    pub(crate) fn due(&self) -> Instant {
        self.check_at
    }

    /// Measures; returns an exceeded limit. `ended` is the processor time of processes that have ended.
    pub(crate) fn check(&mut self, ended: Duration, cleaner: &Cleaner) -> Option<Over> {
        self.check_within(Budget::of_a_measurement(), ended, cleaner)
    }

    fn check_within(&mut self, budget: Budget, ended: Duration, cleaner: &Cleaner) -> Option<Over> {
        let began = cpu_of_shim();
        let broken =
            self.find_exceeded(budget, ended, cleaner).unwrap_or_else(|limit| self.unmeasurable(limit));
        let cost = cpu_of_shim().saturating_sub(began).saturating_mul(SHARE).min(PAUSE_MAX);
        self.check_at = Instant::now() + self.pause(self.cpu).max(cost);
        broken
    }

    fn find_exceeded(
        &mut self,
        budget: Budget,
        ended: Duration,
        cleaner: &Cleaner,
    ) -> Result<Option<Over>, Limit> {
        let enough = self.limits.processes.map_or(u64::MAX, |limit| limit.saturating_add(self.foreign));
        let all = alive(budget, enough).map_err(|Spent| Limit::Processes)?;
        let used = Alive::of(&all);
        let cpu = ended + used.cpu;
        self.cpu = self.cpu.max(cpu);
        let private = self.private(cleaner);
        let threads = used.threads.saturating_sub(self.foreign);
        if let Some(over) = over(Limit::Processes, self.limits.processes, threads) {
            return Ok(Some(over));
        }
        let memory = self.over_memory(&all, used.memory_bytes, &private, budget);
        let seen = memory.map_err(|Spent| Limit::Memory)?;
        match seen.or_else(|| self.over_cpu(cpu)).or_else(|| self.over_files(&private)) {
            None => self.over_disk(&all, &private, budget).map_err(|Spent| Limit::Disk),
            broken => Ok(broken),
        }
    }

    /// Reports that there is more of this than can be measured, which exceeds any reasonable limit. If it is not
    /// limited itself, the first limit that is set is reported, because that one can no longer be checked.
    fn unmeasurable(&self, limit: Limit) -> Option<Over> {
        let Limits { cpu, memory_bytes, processes, disk_bytes, files, .. } = self.limits;
        let all = [
            (Limit::Processes, processes),
            (Limit::Memory, memory_bytes),
            (Limit::Disk, disk_bytes),
            (Limit::Files, files),
            (Limit::Cpu, cpu.map(millis)),
        ];
        let found = all.iter().find(|(one, allowed)| *one == limit && allowed.is_some());
        let (limit, allowed) = *found.or_else(|| all.iter().find(|(_, allowed)| allowed.is_some()))?;
        Some(Over { limit, allowed: allowed?, used: u64::MAX })
    }

    /// Processor time at the last measurement. The usage of processes killed with their own namespace is missing in
    /// the usage of reaped processes.
    pub(crate) fn cpu(&self) -> Duration {
        self.cpu
    }

    /// Checks the limits after all processes have ended.
    pub(crate) fn check_final(&self, cpu: Duration, cleaner: &Cleaner) -> Option<Over> {
        let private = self.private(cleaner);
        self.over_cpu(cpu)
            .or_else(|| over(Limit::Memory, self.limits.memory_bytes, private.bytes))
            .or_else(|| self.over_files(&private))
            .or_else(|| over(Limit::Disk, self.limits.disk_bytes, private.bytes))
    }

    /// Time until the next measurement: even with all processors the rest of the limit lasts that long.
    fn pause(&self, cpu: Duration) -> Duration {
        let limits = &self.limits;
        let fast = [limits.memory_bytes, limits.processes, limits.disk_bytes, limits.files];
        let left = limits.cpu.map(|limit| limit.saturating_sub(cpu) / self.processors);
        let for_cpu = left.map(|left| left.clamp(CPU_INTERVAL.0, CPU_INTERVAL.1));
        let for_rest = fast.iter().any(Option::is_some).then_some(INTERVAL);
        for_cpu.into_iter().chain(for_rest).min().unwrap_or(CPU_INTERVAL.1)
    }

    fn private(&self, cleaner: &Cleaner) -> Private {
        let limits = &self.limits;
        let wanted = [limits.memory_bytes, limits.disk_bytes, limits.files].iter().any(Option::is_some);
        if wanted { cleaner.used() } else { Private::default() }
    }

    fn over_cpu(&self, cpu: Duration) -> Option<Over> {
        let limit = self.limits.cpu.filter(|limit| cpu > *limit)?;
        // In whole milliseconds the excess may round to zero.
        Some(Over { limit: Limit::Cpu, allowed: millis(limit), used: millis(cpu).max(millis(limit) + 1) })
    }

    fn over_files(&self, private: &Private) -> Option<Over> {
        over(Limit::Files, self.limits.files, private.files)
    }

    /// Resident sets are cheap to read, but count shared pages for each process. The exact figures are read only
    /// if they may matter.
    fn over_memory(
        &self,
        all: &[Process],
        resident: u64,
        private: &Private,
        budget: Budget,
    ) -> Result<Option<Over>, Spent> {
        let limit = self.limits.memory_bytes.filter(|limit| resident.saturating_add(private.bytes) > *limit);
        let Some(limit) = limit else { return Ok(None) };
        let (mut own, mut shared) = (0, 0);
        for process in all {
            budget.check()?;
            let part = memory(process.pid);
            own += part.0;
            shared += part.1;
        }
        // Mapped files of the private folders are in both.
        Ok(over(Limit::Memory, Some(limit), own + shared.max(private.bytes)))
    }

    fn over_disk(&self, all: &[Process], private: &Private, budget: Budget) -> Result<Option<Over>, Spent> {
        let Some(limit) = self.limits.disk_bytes else { return Ok(None) };
        let open = unlinked(all, &private.devices, budget)?.saturating_sub(self.foreign * STATUS);
        Ok(over(Limit::Disk, Some(limit), private.bytes.saturating_add(open)))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn over(limit: Limit, allowed: Option<u64>, used: u64) -> Option<Over> {
    let allowed = allowed.filter(|allowed| used > *allowed)?;
    Some(Over { limit, allowed, used })
}

/// Bytes of a process's private memory, and of its part of shared memory, including files in memory. If it may not be
/// inspected, which it can request from the kernel, all its memory counts as private.
fn memory(pid: i32) -> (u64, u64) {
    proportional(pid).unwrap_or_else(|| (resident(pid).unwrap_or_default(), 0))
}

/// The exact figures; `None` for a process that has ended or may not be inspected.
fn proportional(pid: i32) -> Option<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok().map(|kib| kib * 1024)
    };
    Some((field("Pss_Anon:")?, field("Pss_Shmem:").unwrap_or_default()))
}

/// Bytes of files without a name, which live as long as they are open, except those on `devices`.
fn unlinked(all: &[Process], devices: &[u64], budget: Budget) -> Result<u64, Spent> {
    let mut seen = HashSet::new();
    let mut bytes: u64 = 0;
    for process in all {
        let Ok(open) = fs::read_dir(format!("/proc/{}/fd", process.pid)) else { continue };
        for file in open.flatten() {
            budget.check()?;
            // Metadata through the link, of the file itself.
            let Ok(file) = fs::metadata(file.path()) else { continue };
            let gone = file.nlink() == 0 && file.is_file() && !devices.contains(&file.dev());
            if gone && seen.insert((file.dev(), file.ino())) {
                bytes = bytes.saturating_add(file.blocks().saturating_mul(512));
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn monitor(limits: Limits) -> LimitMonitor {
        LimitMonitor { processors: 2, ..LimitMonitor::new(limits, false).unwrap() }
    }

    #[test]
    fn what_is_not_limited_is_not_watched() {
        assert!(LimitMonitor::new(Limits::default(), true).is_none());
        let kernels = Limits { file_bytes: Some(1), user_processes: Some(1), ..Limits::default() };
        assert!(LimitMonitor::new(kernels, false).is_none());
    }

    #[test]
    fn looks_come_closer_as_processor_time_runs_out() {
        let monitor = monitor(Limits { cpu: Some(Duration::from_secs(3)), ..Limits::default() });
        let pause = |used| monitor.pause(Duration::from_millis(used)).as_millis();
        assert_eq!([pause(0), pause(2000), pause(2900), pause(2990), pause(9999)], [1000, 500, 50, 10, 10]);
    }

    #[test]
    fn processor_time_is_over_by_any_amount() {
        let monitor = monitor(Limits { cpu: Some(Duration::from_millis(5)), ..Limits::default() });
        assert_eq!(monitor.over_cpu(Duration::from_millis(5)), None);
        let over = monitor.over_cpu(Duration::from_micros(5100)).unwrap();
        assert_eq!((over.allowed, over.used), (5, 6));
    }

    #[test]
    fn own_memory_is_told_from_what_is_shared() {
        let (own, _) = proportional(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own > 10_000, "{own}");
        assert_eq!((proportional(0), memory(0)), (None, (0, 0)));
    }

    #[test]
    fn more_than_can_be_looked_at_is_over_the_limit() {
        let limits = Limits { memory_bytes: Some(1 << 40), disk_bytes: Some(7), ..Limits::default() };
        let mut monitor = monitor(limits);
        assert_eq!(monitor.check(Duration::ZERO, &Cleaner::default()), None);
        let over = monitor.check_within(Budget::spent(), Duration::ZERO, &Cleaner::default()).unwrap();
        assert_eq!(over, Over { limit: Limit::Memory, allowed: 1 << 40, used: u64::MAX });
        let over = monitor.unmeasurable(Limit::Disk).unwrap();
        assert_eq!((over.limit, over.allowed), (Limit::Disk, 7));
    }
}
