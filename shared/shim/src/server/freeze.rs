//! Stops all descendants so that only this process can let them go on.
//!
//! SIGSTOP is not enough: a timer, a message queue or a descriptor can send a stopped process SIGCONT. A traced thread goes on
//! only when its tracer lets it, or ends when the tracer does.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace::{Options, detach, interrupt, seize};
use nix::unistd::Pid;

use super::tree::{Tree, View};

const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Runs,
    /// It was asked to stop, and has not yet.
    Stops,
    Stopped,
    Ended,
}

/// A thread of a descendant.
#[derive(Debug, Clone, Copy)]
struct Thread {
    id: Pid,
    doing: Doing,
}

impl Tree {
    /// Stops all; returns whether none runs any more. A thread that another process traces cannot be stopped.
    pub(crate) fn freeze(self, patience: Duration) -> io::Result<bool> {
        let until = Instant::now() + patience;
        let Ok(view) = View::of_proc() else { return Ok(false) };
        let mut ended_before = None;
        loop {
            let seen = threads(&view)?;
            // A process that forks and ends between two looks leaves an ended one.
            let ended: BTreeSet<Pid> = seen
                .all
                .iter()
                .filter(|thread| thread.doing == Doing::Ended)
                .map(|thread| thread.id)
                .collect();
            let mut is_still = seen.is_complete && ended_before.as_ref() == Some(&ended);
            for thread in &seen.all {
                match thread.doing {
                    Doing::Ended | Doing::Stopped => {}
                    Doing::Stops => is_still = false,
                    Doing::Runs => {
                        is_still = false;
                        if !stop(thread.id) && !has_ended(&view, thread.id)? {
                            return Ok(false);
                        }
                    }
                }
            }
            if is_still {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            ended_before = Some(ended);
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// Lets all go on.
    pub(crate) fn thaw(self) -> io::Result<()> {
        let Ok(view) = View::of_proc() else { return Ok(()) };
        for thread in threads(&view)?.all {
            if thread.doing == Doing::Stopped {
                // It may have been killed since it was listed.
                let _ = detach(thread.id, None);
            }
        }
        Ok(())
    }
}

/// Begins to trace a thread and to stop it; returns whether it did.
fn stop(thread: Pid) -> bool {
    // Should this process die while they are stopped, they die as well.
    let seized = seize(thread, Options::PTRACE_O_EXITKILL).and_then(|()| interrupt(thread));
    matches!(seized, Ok(()) | Err(Errno::ESRCH))
}

fn has_ended(view: &View, thread: Pid) -> io::Result<bool> {
    let found = threads(view)?.all.into_iter().find(|other| other.id == thread);
    Ok(found.is_none_or(|thread| thread.doing == Doing::Ended))
}

/// The threads that one look found.
struct Seen {
    all: Vec<Thread>,
    /// Whether none of the listed ones was gone when it was looked at.
    is_complete: bool,
}

fn threads(view: &View) -> io::Result<Seen> {
    let mut seen = Seen { all: Vec::new(), is_complete: true };
    for folder in view.descendants()? {
        let Ok(tasks) = fs::read_dir(folder.join("task")) else {
            seen.is_complete = false;
            continue;
        };
        for task in tasks {
            match task.and_then(|task| thread(view, &task.path())) {
                Ok(thread) => seen.all.push(thread),
                Err(_) => seen.is_complete = false,
            }
        }
    }
    Ok(seen)
}

/// The thread that a folder of `/proc` shows.
fn thread(view: &View, folder: &Path) -> io::Result<Thread> {
    let status = fs::read(folder.join("status"))?;
    let status = String::from_utf8_lossy(&status);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let ids = field("NSpid").unwrap_or_default().split_ascii_whitespace();
    let id = ids.filter_map(|id| id.parse().ok()).nth(view.depth).ok_or(io::ErrorKind::InvalidData)?;
    let is_ours = field("TracerPid").and_then(|tracer| tracer.trim().parse().ok()) == Some(view.own);
    let doing = match field("State").and_then(|state| state.trim_start().chars().next()) {
        Some('Z' | 'X' | 'x') => Doing::Ended,
        Some('t') if is_ours => Doing::Stopped,
        _ if is_ours => Doing::Stops,
        _ => Doing::Runs,
    };
    Ok(Thread { id: Pid::from_raw(id), doing })
}
