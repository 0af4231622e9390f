//! Killing every process that descends from this one.

use std::collections::HashMap;
use std::fs;
use std::io;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::sys::{Reaped, Waited, wait_any};
use crate::model::Mode;

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
            self.kill()?;
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

    /// One round of SIGKILL.
    fn kill(self) -> io::Result<()> {
        match self.mode {
            // The kernel signals everything in the namespace except its first process, which we are, under
            // one lock that a fork needs too: nothing slips through. That none is left is no error.
            Mode::PidNamespace => drop(kill(Pid::from_raw(-1), Signal::SIGKILL)),
            Mode::Subreaper => {
                for pid in descendants()? {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
            }
        }
        Ok(())
    }
}

/// The process ids of all descendants that `/proc` shows now; what forks meanwhile is found the next time.
pub(crate) fn descendants() -> io::Result<Vec<i32>> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that ended meanwhile cannot be read.
        let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { continue };
        if let Some(parent) = parent(&stat) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found =
        children.remove(&i32::try_from(std::process::id()).unwrap_or_default()).unwrap_or_default();
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    Ok(found)
}

/// The parent in a `/proc/PID/stat` line, `pid (name) state parent ...`; the name may hold anything.
fn parent(stat: &[u8]) -> Option<i32> {
    let end_of_name = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end_of_name + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_found_behind_any_name() {
        assert_eq!(parent(b"12 (sh) S 7 12 12 0 -1"), Some(7));
        assert_eq!(parent(b"12 (a) R 1 (b) S 7 12 12"), Some(7));
        assert_eq!(parent(b"12 (\xff) ) Z 7 0"), Some(7));
        assert_eq!(parent(b"12"), None);
    }
}
