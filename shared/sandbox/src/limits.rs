//! The limits of a command, and which component enforces each.
//!
//! The shim sees the processes of a command from inside its sandbox: processor time, memory, processes, and files in
//! private folders. This crate sees the folder of the command and the control groups. A limit on memory or processes
//! is enforced by a control group if there is one: it is exact and takes effect immediately.

use std::path::PathBuf;
use std::time::Duration;

use invariant::Present as _;
use nix::time::{ClockId, clock_gettime};
use shim::{Limit, Over};
use tokio::time::Instant;

use crate::cgroups::Group;
use crate::config::{Limits, Run};
use crate::growth::{FolderState, Growth};

/// Time between two checks of a command that has limits.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Scanning a folder uses at most one part in this many of a processor, unless that would be too late.
const SHARE: u32 = 20;
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Bytes by which a file may exceed a limit before the kernel stops it, so that the excess can be detected.
const EXCESS: u64 = 4096;
/// Bytes of memory that the slot's own process may use in the control group of a command.
const OWN_MEMORY: u64 = 8 << 20;
/// Assumed share of a processor that the slot's own process uses, one part in this many, if its usage is unknown.
const OWN_SHARE: u32 = 10;
/// Processes of bubblewrap if it is started for the command.
const WRAPPER: u64 = 2;
/// Number of processes and threads that other processes of the same user may start while the limit of a command is checked
/// by measuring, for each processor, and the least and the most: a command that starts processes as fast as it can has as
/// many, and the kernel needs several processors for seconds to end thousands.
const OTHERS: u64 = 128;
const OTHERS_BOUNDS: [u64; 2] = [256, 4096];

/// Checks the limits of one run.
#[derive(Debug)]
pub(crate) struct Guard {
    limits: Limits,
    before: Option<FolderState>,
    check_at: Instant,
    /// When the folder is scanned next.
    scan_at: Instant,
    /// Processor time that had been used before.
    cpu_before: Option<Cpu>,
}

/// Processor time at one moment.
#[derive(Debug, Clone, Copy)]
struct Cpu {
    at: Instant,
    /// Of all processes that ever were in the group, including the slot's own process.
    group: Duration,
    /// Of the slot's own process, if it is known.
    own: Option<Duration>,
}

impl Cpu {
    /// Processor time of commands since `before`; and its maximum error, caused by the slot's own process.
    fn since(self, before: Self) -> (Duration, Duration) {
        let all = self.group.saturating_sub(before.group);
        match self.own.zip(before.own) {
            Some((now, then)) => (all.saturating_sub(now.saturating_sub(then)), Duration::ZERO),
            None => (all, self.at.saturating_duration_since(before.at) / OWN_SHARE),
        }
    }
}

impl Guard {
    /// For a run that begins; `None` if it has no limits to check here. The folders `made` do not count for the
    /// command; `own` returns the processor time of the slot's own process.
    pub(crate) fn new(
        run: &Run,
        made: &[PathBuf],
        group: &Group,
        own: impl Fn() -> Option<Duration>,
    ) -> Option<Self> {
        let limits = run.limits;
        let grows = limits.disk_bytes.is_some() || limits.files.is_some();
        let cpu_before = limits.cpu.and_then(|_| cpu_now(group, own));
        let guarded = grows || cpu_before.is_some() || limits.processes.is_some() && group.has_processes();
        let now = Instant::now();
        guarded.then(|| Self {
            limits,
            before: grows.then(|| FolderState::scan(&run.root, made)),
            check_at: now + CHECK_INTERVAL,
            scan_at: now + CHECK_INTERVAL,
            cpu_before,
        })
    }

    /// When to check next.
    pub(crate) fn due(&self) -> Instant {
        self.check_at
    }

    /// Checks if it is time; returns an exceeded limit.
    pub(crate) fn check(&mut self, group: &Group, own: impl Fn() -> Option<Duration>) -> Option<Over> {
        let now = Instant::now();
        if now < self.check_at {
            return None;
        }
        self.check_at = now + CHECK_INTERVAL;
        let mut broken = self.over_group(group, own);
        if broken.is_none() && self.scan_at <= now {
            let began = own_cpu();
            // Files moved during a scan may be counted twice; hardly in two scans in a row.
            broken = self.over_folder().and_then(|_| self.over_folder());
            let cost = own_cpu().saturating_sub(began).saturating_mul(SHARE);
            self.scan_at = Instant::now() + cost.clamp(CHECK_INTERVAL, PAUSE_MAX);
        }
        broken
    }

    /// Checks the limits after all processes have ended.
    pub(crate) fn check_final(&self, group: &Group, own: impl Fn() -> Option<Duration>) -> Option<Over> {
        self.over_group(group, own).or_else(|| self.over_folder())
    }

    fn over_group(&self, group: &Group, own: impl Fn() -> Option<Duration>) -> Option<Over> {
        if let Some(allowed) = self.limits.processes.filter(|_| group.is_over_processes()) {
            return Some(Over { limit: Limit::Processes, allowed, used: allowed.saturating_add(1) });
        }
        let (limit, before) = self.limits.cpu.zip(self.cpu_before)?;
        let (used, error) = cpu_now(group, own)?.since(before);
        // The slot's process enforces this limit, but does not see children that were not waited for.
        let most = limit.saturating_add(limit / 8).saturating_add(Duration::from_millis(250));
        let most = most.saturating_add(error);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        (used > most).then(|| Over { limit: Limit::Cpu, allowed: millis(limit), used: millis(used) })
    }

    fn over_folder(&self) -> Option<Over> {
        let before = self.before.as_ref()?;
        let (bytes, files) = (self.limits.disk_bytes, self.limits.files);
        let most = Growth { bytes: bytes.unwrap_or(u64::MAX), files: files.unwrap_or(u64::MAX) };
        let growth = before.growth(most);
        let over = |limit, allowed: Option<u64>, used| {
            allowed.filter(|allowed| used > *allowed).map(|allowed| Over { limit, allowed, used })
        };
        over(Limit::Files, files, growth.files).or_else(|| over(Limit::Disk, bytes, growth.bytes))
    }

    /// The maximum length that a file needs: existing files may grow, and output files count too.
    fn file_bytes(&self, run: &Run) -> Option<u64> {
        let disk = self.limits.disk_bytes?;
        let longest = self.before.as_ref().map_or(0, FolderState::longest);
        Some(disk.saturating_add(longest).max(run.output_bytes_max).saturating_add(EXCESS))
    }
}

/// The limits for the slot's process, with or without a control group. `guard` belongs to the run.
pub(crate) fn shims(run: &Run, guard: Option<&Guard>, group: &Group, uid: u32) -> shim::Limits {
    let Limits { cpu, memory_bytes, processes, files, disk_bytes } = run.limits;
    let processes = processes.filter(|_| !group.has_processes());
    shim::Limits {
        cpu,
        memory_bytes: memory_bytes.filter(|_| !group.has_memory()),
        processes,
        disk_bytes,
        files,
        file_bytes: guard.and_then(|guard| guard.file_bytes(run)),
        user_processes: processes.map(|limit| limit.saturating_add(threads_of(uid)).saturating_add(others())),
    }
}

/// Number of processes and threads that others of the same user may start meanwhile.
fn others() -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let [least, most] = OTHERS_BOUNDS;
    OTHERS.saturating_mul(processors).clamp(least, most)
}

/// The limits for the run's control group: bytes of memory, and processes.
pub(crate) fn groups(run: &Run, alone: bool) -> (Option<u64>, Option<u64>) {
    let memory = run.limits.memory_bytes.into_iter().chain(run.memory_bytes_max).min();
    let memory = memory.map(|bytes| bytes.saturating_add(OWN_MEMORY));
    let wrapper = if alone { WRAPPER } else { 0 };
    let processes = run.limits.processes.map(|processes| processes.saturating_add(wrapper));
    (memory, processes)
}

/// The processor time so far, if it is counted. `own` is read last: a command must not be charged for time that the
/// slot used between the two.
fn cpu_now(group: &Group, own: impl Fn() -> Option<Duration>) -> Option<Cpu> {
    Some(Cpu { at: Instant::now(), group: group.cpu()?, own: own() })
}

/// Processor time of this thread. Waiting for a processor, while a command uses all of them, costs nothing.
fn own_cpu() -> Duration {
    let used = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
    used.present("the system has no CLOCK_THREAD_CPUTIME_ID")
}

/// Number of processes and threads of a user on this machine.
fn threads_of(uid: u32) -> u64 {
    use std::os::unix::fs::MetadataExt;
    // Without `/proc` the limit of a command includes the other processes of its user.
    let Ok(all) = std::fs::read_dir("/proc") else { return 0 };
    let of = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let is_process = name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        let ours = is_process && entry.metadata().is_ok_and(|metadata| metadata.uid() == uid);
        // Two links of the folder are its own.
        let tasks = || std::fs::metadata(entry.path().join("task")).map_or(1, |tasks| tasks.nlink());
        if ours { tasks().saturating_sub(2).max(1) } else { 0 }
    };
    all.flatten().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_slot_itself_uses_is_not_the_commands() {
        let second = Duration::from_secs(1);
        let before = Cpu { at: Instant::now(), group: second, own: Some(second) };
        let now = Cpu { at: before.at + 20 * second, group: 9 * second, own: Some(6 * second) };
        assert_eq!(now.since(before), (3 * second, Duration::ZERO));
        // If it is unknown, it may have been the whole assumed share.
        let unknown = Cpu { own: None, ..now };
        assert_eq!(unknown.since(before), (8 * second, 2 * second));
    }
}
