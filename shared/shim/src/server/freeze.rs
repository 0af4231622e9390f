//! Stops all descendants so that only this process can let them go on.
//!
//! SIGSTOP is not enough: a timer, a message queue or a descriptor can send a stopped process SIGCONT. A traced thread goes on
//! only when its tracer lets it, or ends when the tracer does.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::ptrace::{Options, detach, interrupt, seize};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::traced;
use super::tree::View;

const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Doing {
    Runs,
    /// It was asked to stop, and has not yet.
    Stops,
    Stopped,
    Ended,
}

/// A thread of a descendant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Thread {
    id: Pid,
    /// The id of its process.
    process: Pid,
    doing: Doing,
}

/// Stops all descendants; returns whether some are left, and none of them runs. Processes that cannot be traced are killed.
pub(crate) fn freeze(patience: Duration) -> io::Result<bool> {
    let until = Instant::now() + patience;
    let Ok(view) = View::of_proc() else { return Ok(false) };
    let mut before = Vec::new();
    loop {
        let mut seen = threads(&view)?;
        seen.all.sort_unstable();
        for thread in seen.all.iter().filter(|thread| thread.doing == Doing::Runs) {
            if Instant::now() >= until {
                return Ok(false);
            }
            stop(&view, thread);
        }
        // A process may appear that was made by one that stopped only while others were looked at: so the next look has to
        // find the same. One that forks and ends between two looks leaves an ended one.
        let is_still = seen.all.iter().all(|it| matches!(it.doing, Doing::Stopped | Doing::Ended));
        if is_still && seen.is_complete && seen.all == before {
            return Ok(seen.all.iter().any(|it| it.doing == Doing::Stopped));
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        before = seen.all;
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

/// Lets all descendants go on.
pub(crate) fn thaw() -> io::Result<()> {
    traced::forget();
    let Ok(view) = View::of_proc() else { return Ok(()) };
    for thread in threads(&view)?.all {
        if thread.doing == Doing::Stopped {
            // It may have been killed since it was listed.
            let _ = detach(thread.id, None);
        }
    }
    Ok(())
}

/// Begins to trace a thread and to stop it, or kills its process.
fn stop(view: &View, thread: &Thread) {
    // Should this process die while they are stopped, they die as well.
    match seize(thread.id, Options::PTRACE_O_EXITKILL) {
        Ok(()) => {
            if let Ok(id) = u32::try_from(thread.id.as_raw()) {
                traced::note(id);
            }
            // It may have ended since.
            let _ = interrupt(thread.id);
        }
        // Another process traces it, or it denies to be traced. For a thread that has ended, the error is the same.
        Err(_) if !view.has_ended(thread.id) => {
            let _ = kill(thread.process, Signal::SIGKILL);
        }
        Err(_) => {}
    }
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
    let here = |name| field(name)?.split_ascii_whitespace().nth(view.depth)?.parse().ok().map(Pid::from_raw);
    let id: Pid = here("NSpid").ok_or(io::ErrorKind::InvalidData)?;
    let process = here("NStgid").unwrap_or(id);
    let is_ours = field("TracerPid").and_then(|tracer| tracer.trim().parse().ok()) == Some(view.own);
    let doing = match field("State").and_then(|state| state.trim_start().chars().next()) {
        Some('Z' | 'X' | 'x') => Doing::Ended,
        Some('t') if is_ours => Doing::Stopped,
        _ if is_ours => Doing::Stops,
        _ => Doing::Runs,
    };
    Ok(Thread { id, process, doing })
}
