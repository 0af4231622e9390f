//! Processes of builds, as `/proc` shows them: they must not outlive their worker's lease.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use farm::start_ticks;
use nix::{sys::signal::Signal, unistd::Pid};
use tokio::time::Instant;

/// A process that a build started: its id, its start time, and its build.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BuildProcess {
    pid: u32,
    started: u64,
    pub(super) build: String,
}

/// Returns processes of builds that descend from `ancestor`, or all of them.
pub(super) fn of(ancestor: Option<u32>) -> Vec<BuildProcess> {
    let parents = parents();
    let wanted = parents.keys().filter(|pid| ancestor.is_none_or(|from| descends(&parents, **pid, from)));
    wanted
        .filter_map(|pid| {
            let build = build_of(*pid)?;
            Some(BuildProcess { pid: *pid, started: start_ticks(*pid)?, build })
        })
        .collect()
}

/// A stopped process: its id and start time.
pub(super) type Frozen = (u32, u64);

/// Stops all descendants of `ancestor`, which is already stopped, until none is left that could fork.
pub(super) fn freeze_below(ancestor: u32) -> Vec<Frozen> {
    let mut frozen: BTreeSet<Frozen> = BTreeSet::new();
    loop {
        let parents = parents();
        let below = parents.keys().filter(|pid| descends(&parents, **pid, ancestor));
        let fresh: Vec<Frozen> = below
            .filter_map(|pid| Some((*pid, start_ticks(*pid)?)))
            .filter(|process| !frozen.contains(process))
            .collect();
        if fresh.is_empty() {
            return frozen.into_iter().collect();
        }
        for process in &fresh {
            send(*process, Signal::SIGSTOP);
        }
        frozen.extend(fresh);
    }
}

/// Continues the processes that are still alive.
pub(super) fn thaw(frozen: &[Frozen]) {
    for process in frozen {
        send(*process, Signal::SIGCONT);
    }
}

fn send((pid, started): Frozen, signal: Signal) {
    if start_ticks(pid) == Some(started)
        && let Ok(pid) = i32::try_from(pid)
    {
        // The process may have ended in the meantime.
        let _ = nix::sys::signal::kill(Pid::from_raw(pid), signal);
    }
}

fn descends(parents: &BTreeMap<u32, u32>, pid: u32, ancestor: u32) -> bool {
    let mut seen = BTreeSet::new();
    let mut at = pid;
    while let Some(parent) = parents.get(&at)
        && seen.insert(at)
    {
        if *parent == ancestor {
            return true;
        }
        at = *parent;
    }
    false
}

/// Waits until the processes end, at most `limit`; returns the time, and those still alive.
pub(super) async fn death(
    processes: &[BuildProcess],
    limit: Duration,
) -> Result<Duration, Vec<BuildProcess>> {
    let began = Instant::now();
    loop {
        let alive: Vec<BuildProcess> =
            processes.iter().filter(|it| start_ticks(it.pid) == Some(it.started)).cloned().collect();
        if alive.is_empty() {
            return Ok(began.elapsed());
        }
        if began.elapsed() > limit {
            return Err(alive);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn parents() -> BTreeMap<u32, u32> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        if let Some(parent) = rest.split_ascii_whitespace().nth(1).and_then(|text| text.parse().ok()) {
            parents.insert(pid, parent);
        }
    }
    parents
}

fn build_of(pid: u32) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let variable = environment.split(|byte| *byte == 0).find(|it| it.starts_with(b"FOREBAY_BUILD_ID="))?;
    let (_, id) = std::str::from_utf8(variable).ok()?.split_once('=')?;
    Some(id.to_owned())
}
