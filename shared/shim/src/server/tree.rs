//! Every process that descends from this one: killing them, and what they use.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};

use super::sys::{Reaped, Waited, wait_any};
use crate::model::Mode;

/// The first process of a namespace.
const FIRST: i32 = 1;

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

    /// Kills and reaps until there are none. Every living descendant has an ancestor that is our child
    /// (orphans are handed to us), so having no children means having no descendants.
    pub(crate) fn destroy(self, mut reaped: impl FnMut(Reaped)) -> io::Result<()> {
        loop {
            self.signal(Signal::SIGKILL)?;
            // At least one child got the signal, for none but us reaps them: this wait ends.
            let mut block = true;
            loop {
                match wait_any(block)? {
                    Waited::Reaped(child) => reaped(child),
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
            // The kernel signals everything in the namespace except its first process, which we are, under
            // one lock that a fork needs too: nothing slips through. That none is left is no error.
            Mode::PidNamespace => drop(kill(Pid::from_raw(-1), signal)),
            Mode::Subreaper => {
                for pid in descendants()? {
                    let _ = kill(Pid::from_raw(pid), signal);
                }
            }
        }
        Ok(())
    }
}

/// The process ids of all descendants that `/proc` shows now; what forks meanwhile is found the next time.
pub(crate) fn descendants() -> io::Result<Vec<i32>> {
    Ok(processes()?.into_iter().map(|process| process.pid).collect())
}

/// What all descendants use that live now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Alive {
    /// User and system time since they started, with that of their children that have ended.
    pub(crate) cpu: Duration,
    /// Their resident sets together.
    pub(crate) memory_bytes: u64,
    /// The largest of these.
    pub(crate) largest_bytes: u64,
    /// How many there are, each with all its threads.
    pub(crate) threads: u64,
}

impl Alive {
    /// What these use together.
    pub(crate) fn of(all: &[Process]) -> Self {
        let unit =
            |name, usual| sysconf(name).ok().flatten().and_then(|n| u64::try_from(n).ok()).unwrap_or(usual);
        let ticks: u64 = all.iter().map(|process| process.cpu_ticks).sum();
        let pages = all.iter().map(|process| process.resident_pages);
        let page = unit(SysconfVar::PAGE_SIZE, 4096);
        Self {
            cpu: Duration::from_millis(ticks.saturating_mul(1000) / unit(SysconfVar::CLK_TCK, 100).max(1)),
            memory_bytes: pages.clone().sum::<u64>().saturating_mul(page),
            largest_bytes: pages.max().unwrap_or_default().saturating_mul(page),
            threads: all.iter().map(|process| process.threads).sum(),
        }
    }
}

/// All descendants that live now; none where `/proc` shows another namespace than ours.
pub(crate) fn alive() -> Vec<Process> {
    if is_ours() { processes().unwrap_or_default() } else { Vec::new() }
}

/// Whether `/proc` shows our own namespace.
fn is_ours() -> bool {
    let own = fs::read_link("/proc/self").ok();
    own.as_deref().and_then(|link| link.to_str()?.parse::<u32>().ok()) == Some(std::process::id())
}

/// What all descendants use that live now, as [`alive`] sees them.
pub(crate) fn measure() -> Alive {
    Alive::of(&alive())
}

/// A line of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    parent: i32,
    /// User and system time, its own and that of the children it waited for.
    cpu_ticks: u64,
    resident_pages: u64,
    threads: u64,
}

fn processes() -> io::Result<Vec<Process>> {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that ended meanwhile cannot be read.
        let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { continue };
        if let Some(process) = parse(pid, &stat) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    if own == FIRST && is_ours() {
        // All in our namespace descend from us, also those whose parents died while we looked.
        return Ok(children.into_values().flatten().filter(|process| process.pid != own).collect());
    }
    let mut found = children.remove(&own).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(children.remove(&process.pid).unwrap_or_default());
        next += 1;
    }
    Ok(found)
}

/// A `/proc/PID/stat` line, `pid (name) state parent ...`; the name may hold anything.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let end_of_name = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(stat.get(end_of_name + 1..)?).ok()?.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    // utime, stime, cutime, cstime are fields 14 to 17 of the line, num_threads is 20, rss 24; the parent was field 4.
    let mut number = |skip| fields.nth(skip).and_then(|field| field.parse::<u64>().ok()).unwrap_or_default();
    let cpu_ticks = number(9) + number(0) + number(0) + number(0);
    Some(Process { pid, parent, cpu_ticks, threads: number(2), resident_pages: number(3) })
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
        let wanted = Process { pid: 12, parent: 7, cpu_ticks: 38, resident_pages: 321, threads: 8 };
        assert_eq!(parse(12, line), Some(wanted));
    }
}
