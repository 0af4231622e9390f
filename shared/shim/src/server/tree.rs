//! Every process that descends from this one: kills them and measures their usage.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use invariant::Present as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};

use super::budget::{Budget, Spent};
use super::sys::{Reaped, Waited, wait_any};
use crate::model::Mode;

/// Mount point of the process file system.
const PROC: &str = "/proc";

/// The first process of a namespace.
const FIRST: i32 = 1;

const UNLIMITED: &str = "the end of a scan without a budget";

/// All descendants of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree {
    mode: Mode,
}

impl Tree {
    /// The descendants of a shim in this mode.
    pub(crate) fn new(mode: Mode) -> Self {
        Self { mode }
    }

    /// Kills and reaps until there are none. Every living descendant has an ancestor that is a child of this process
    /// (it adopts orphans), so having no children means having no descendants.
    pub(crate) fn destroy(self, mut reaped: impl FnMut(Reaped)) -> io::Result<()> {
        loop {
            self.signal(Signal::SIGKILL)?;
            // At least one child got the signal, since only this process reaps them: this wait ends.
            let mut block = true;
            loop {
                match wait_any(block)? {
                    Waited::Reaped(child) => reaped(child),
                    Waited::Traced => {}
                    Waited::NoChildren => return Ok(()),
                    Waited::NoneEnded => break,
                }
                block = false;
            }
        }
    }

    /// Sends a signal to all, once.
    pub(crate) fn signal(self, signal: Signal) -> io::Result<()> {
        match self.mode {
            // The kernel signals every process in the namespace except its first, which is this one, under one lock
            // that a fork needs too: no process slips through. An empty namespace is not an error.
            Mode::PidNamespace => {
                let _ = kill(Pid::from_raw(-1), signal);
            }
            Mode::Subreaper => {
                for pid in descendants()? {
                    // The process may have ended since it was listed.
                    let _ = kill(Pid::from_raw(pid), signal);
                }
            }
        }
        Ok(())
    }
}

/// The process ids, in this namespace, of all descendants that `/proc` shows now; processes forked during the call
/// are found the next time.
pub(crate) fn descendants() -> io::Result<Vec<i32>> {
    let view = View::of_proc()?;
    let found = processes(&view.proc, Budget::ANY, u64::MAX)?.ok().present(UNLIMITED);
    if i32::try_from(std::process::id()) == Ok(view.own) {
        return Ok(found.into_iter().map(|process| process.pid).collect());
    }
    let ids = |process: Process| namespace_pids(&view.proc, process.pid).get(view.depth).copied();
    Ok(found.into_iter().filter_map(ids).collect())
}

/// How `/proc` shows this process.
#[derive(Debug)]
pub(crate) struct View {
    proc: PathBuf,
    /// Id of this process there.
    pub(crate) own: i32,
    /// Position of the ids in this process's namespace among those that `/proc` lists.
    pub(crate) depth: usize,
}

impl View {
    pub(crate) fn of_proc() -> io::Result<Self> {
        let proc = PathBuf::from(PROC);
        let own = own_pid(&proc)?;
        let depth = namespace_pids(&proc, own).len().saturating_sub(1);
        Ok(Self { proc, own, depth })
    }

    /// Whether a thread, or a process, has ended.
    pub(crate) fn has_ended(&self, thread: nix::unistd::Pid) -> bool {
        // A thread has a folder by its own id, which is not listed. In an old view, the next look tells.
        let stat = fs::read(self.proc.join(thread.to_string()).join("stat")).unwrap_or_default();
        let state = stat.rsplit(|byte| *byte == b')').next().and_then(|rest| rest.get(1));
        self.depth != 0 || matches!(state, None | Some(b'Z' | b'X' | b'x'))
    }

    /// The folders of all descendants.
    pub(crate) fn descendants(&self) -> io::Result<impl Iterator<Item = PathBuf> + '_> {
        let found = processes(&self.proc, Budget::ANY, u64::MAX)?.ok().present(UNLIMITED);
        Ok(found.into_iter().map(|process| self.proc.join(process.pid.to_string())))
    }
}

/// Usage of all living descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Alive {
    /// User and system time since they started, including their children that have ended.
    pub(crate) cpu: Duration,
    /// The sum of their resident sets.
    pub(crate) memory_bytes: u64,
    /// The largest resident set.
    pub(crate) largest_bytes: u64,
    /// Number of processes, each counted with all its threads.
    pub(crate) threads: u64,
}

impl Alive {
    /// The total usage of these processes.
    pub(crate) fn of(all: &[Process]) -> Self {
        let ticks: u64 = all.iter().map(|process| process.own_ticks + process.waited_ticks).sum();
        let pages = all.iter().map(|process| process.resident_pages);
        let page = page_bytes();
        Self {
            cpu: time(ticks),
            memory_bytes: pages.clone().sum::<u64>().saturating_mul(page),
            largest_bytes: pages.max().unwrap_or_default().saturating_mul(page),
            threads: all.iter().map(|process| process.threads).sum(),
        }
    }
}

/// All living descendants, if listing them stays within the budget; none if `/proc` does not show them. It may stop
/// once they have more than `enough` threads: a fork bomb creates them as fast as they can be listed.
pub(crate) fn alive(budget: Budget, enough: u64) -> Result<Vec<Process>, Spent> {
    processes(Path::new(PROC), budget, enough).unwrap_or(Ok(Vec::new()))
}

/// Whether `/proc` shows this process, and so its descendants.
pub(crate) fn is_visible() -> bool {
    own_pid(Path::new(PROC)).is_ok()
}

/// Id of this process in the namespace that `proc` shows. It differs from the own id where a container allows no new
/// `/proc`: the old one shows this process and its descendants with their ids outside.
fn own_pid(proc: &Path) -> io::Result<i32> {
    let own = fs::read_link(proc.join("self"))?;
    let own = own.to_str().and_then(|link| link.parse().ok());
    own.ok_or_else(|| io::Error::other(format!("{} does not show us", proc.display())))
}

/// The ids of a process in the namespace that `proc` shows and in each nested one; empty if it has ended.
fn namespace_pids(proc: &Path, pid: i32) -> Vec<i32> {
    let status = fs::read(proc.join(pid.to_string()).join("status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    line.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Usage of all living descendants, as [`alive`] lists them.
pub(crate) fn measure() -> Alive {
    Alive::of(&alive(Budget::ANY, u64::MAX).ok().present(UNLIMITED))
}

/// User and system time of a process, without that of its children; `None` if it has ended.
pub(crate) fn own_cpu(pid: u32) -> Option<Duration> {
    let stat = fs::read(format!("{PROC}/{pid}/stat")).ok()?;
    Some(time(parse(i32::try_from(pid).ok()?, &stat)?.own_ticks))
}

/// Bytes of memory that a process uses, including shared pages; `None` if it has ended.
pub(crate) fn resident(pid: i32) -> Option<u64> {
    let pages = fs::read_to_string(format!("{PROC}/{pid}/statm")).ok()?;
    Some(pages.split(' ').nth(1)?.parse::<u64>().ok()?.saturating_mul(page_bytes()))
}

fn time(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / system_value(SysconfVar::CLK_TCK, 100).max(1))
}

fn page_bytes() -> u64 {
    system_value(SysconfVar::PAGE_SIZE, 4096)
}

fn system_value(name: SysconfVar, usual: u64) -> u64 {
    sysconf(name).ok().flatten().and_then(|number| u64::try_from(number).ok()).unwrap_or(usual)
}

/// A parsed line of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    parent: i32,
    /// User and system time, in clock ticks.
    own_ticks: u64,
    /// The same for the children it waited for.
    waited_ticks: u64,
    resident_pages: u64,
    threads: u64,
}

/// All descendants of this process, as `proc` shows them.
fn processes(proc: &Path, budget: Budget, enough: u64) -> io::Result<Result<Vec<Process>, Spent>> {
    let own = own_pid(proc)?;
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    let mut threads: u64 = 0;
    for entry in fs::read_dir(proc)?.flatten() {
        if budget.check().is_err() {
            return Ok(Err(Spent));
        }
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process that ended during the scan cannot be read.
        let Ok(stat) = fs::read(entry.path().join("stat")) else { continue };
        if let Some(process) = parse(pid, &stat) {
            children.entry(process.parent).or_default().push(process);
            // All others in this namespace are descendants, even those whose parents died during the scan.
            threads += if own == FIRST && pid != own { process.threads } else { 0 };
            if threads > enough {
                break;
            }
        }
    }
    if own == FIRST {
        return Ok(Ok(children.into_values().flatten().filter(|process| process.pid != own).collect()));
    }
    let mut found = children.remove(&own).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(children.remove(&process.pid).unwrap_or_default());
        next += 1;
    }
    Ok(Ok(found))
}

/// Parses a `/proc/PID/stat` line, `pid (name) state parent ...`; the name may hold any bytes.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let end_of_name = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(stat.get(end_of_name + 1..)?).ok()?.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    // utime, stime, cutime, cstime are fields 14 to 17 of the line, num_threads is 20, rss 24; the
    // parent was field 4.
    let mut number = |skip| fields.nth(skip).and_then(|field| field.parse::<u64>().ok()).unwrap_or_default();
    let (own_ticks, waited_ticks) = (number(9) + number(0), number(0) + number(0));
    Some(Process { pid, parent, own_ticks, waited_ticks, threads: number(2), resident_pages: number(3) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_found_behind_any_name() {
        let parent = |stat| parse(12, stat).map(|process| process.parent);
        assert_eq!(parent(b"12 (sh) S 7 12 12 0 -1"), Some(7));
        assert_eq!(parent(b"12 (a) R 1 (b) S 7 12 12"), Some(7));
        assert_eq!(parent(b"12 (\xff) ) Z 7 0"), Some(7));
        assert_eq!(parent(b"12"), None);
    }

    #[test]
    fn what_a_process_used_is_read() {
        let line = b"12 (sh) S 7 12 12 0 -1 4194304 100 200 0 0 5 3 20 10 20 0 8 0 999 4096000 321 18446744073709551615 1";
        let wanted =
            Process { pid: 12, parent: 7, own_ticks: 8, waited_ticks: 30, resident_pages: 321, threads: 8 };
        assert_eq!(parse(12, line), Some(wanted));
    }

    /// A `/proc` with these processes and parents, in which this process has the id `own`.
    fn proc(own: i32, all: &[(i32, i32)]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(own.to_string(), proc.path().join("self")).unwrap();
        for (pid, parent) in all {
            let folder = proc.path().join(pid.to_string());
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("stat"), format!("{pid} (sh) S {parent} 0")).unwrap();
            fs::write(folder.join("status"), format!("Name:\tsh\nNSpid:\t{pid}\t{}\n", pid - 39)).unwrap();
        }
        proc
    }

    fn seen(proc: &Path) -> Vec<i32> {
        let mut seen: Vec<i32> = processes(proc, Budget::ANY, u64::MAX)
            .unwrap()
            .unwrap()
            .iter()
            .map(|process| process.pid)
            .collect();
        seen.sort_unstable();
        seen
    }

    #[test]
    fn an_old_view_shows_what_descends_from_us_and_nobody_else() {
        let outside = proc(40, &[(1, 0), (2, 1), (40, 2), (41, 40), (42, 41), (50, 1)]);
        assert_eq!(seen(outside.path()), [41, 42]);
        assert_eq!(namespace_pids(outside.path(), 42), [42, 3]);
        assert!(namespace_pids(outside.path(), 43).is_empty());
        // In this process's own namespace all processes count, even if their parents have ended.
        let inside = proc(1, &[(1, 0), (2, 1), (9, 8)]);
        assert_eq!(seen(inside.path()), [2, 9]);
        assert_eq!(processes(inside.path(), Budget::spent(), u64::MAX).unwrap(), Err(Spent));
        assert!(processes(&inside.path().join("1"), Budget::ANY, u64::MAX).is_err());
    }
}
