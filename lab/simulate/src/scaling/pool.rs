//! The processes of a simulated pool.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    Starting,
    /// Accepts work, and runs the given number of items.
    Alive(u32),
    /// Accepts no work, and still runs the given number of items.
    Draining(u32),
}

/// Number of processes at each stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Stages {
    pub(super) starting: u64,
    pub(super) alive: u64,
    /// Live processes that run at least one item.
    pub(super) busy: u64,
    pub(super) draining: u64,
}

/// A pool of equal processes.
#[derive(Debug)]
pub(super) struct Pool {
    processes: BTreeMap<u64, Process>,
    /// Processes with a free slot.
    with_room: BTreeSet<u64>,
    slots: u32,
    next: u64,
    stages: Stages,
}

impl Pool {
    pub(super) fn new(slots: u32) -> Self {
        let (processes, with_room) = (BTreeMap::new(), BTreeSet::new());
        Self { processes, with_room, slots, next: 0, stages: Stages::default() }
    }

    pub(super) fn stages(&self) -> Stages {
        self.stages
    }

    /// Starts one more process and returns its number.
    pub(super) fn start(&mut self) -> u64 {
        let id = self.next;
        self.next += 1;
        self.put(id, Some(Process::Starting));
        id
    }

    /// The process accepts work from now on, unless it was removed while it started.
    pub(super) fn ready(&mut self, id: u64) {
        if self.processes.get(&id) == Some(&Process::Starting) {
            self.put(id, Some(Process::Alive(0)));
        }
    }

    /// Starts an item on the free process with the lowest number, so that few processes are busy when
    /// there is little work.
    pub(super) fn begin(&mut self) -> Option<u64> {
        let id = *self.with_room.first()?;
        let Some(Process::Alive(running)) = self.processes.get(&id).copied() else {
            unreachable!("process {id} has a free slot but accepts no work");
        };
        self.put(id, Some(Process::Alive(running + 1)));
        Some(id)
    }

    /// Ends an item of the process. Returns whether the process still existed.
    pub(super) fn end(&mut self, id: u64) -> bool {
        let was_there = self.processes.contains_key(&id);
        let after = match self.processes.get(&id) {
            Some(Process::Alive(running)) => Some(Process::Alive(running.saturating_sub(1))),
            Some(Process::Draining(running)) if *running > 1 => Some(Process::Draining(running - 1)),
            Some(Process::Draining(_) | Process::Starting) | None => None,
        };
        self.put(id, after);
        was_there
    }

    /// Removes `count` processes: starting ones first, then those with the fewest items, the youngest first.
    pub(super) fn drain(&mut self, count: u64) {
        let rank = |(id, process): (&u64, &Process)| match process {
            Process::Starting => Some((0, u64::MAX - id)),
            Process::Alive(running) => Some((1 + running, u64::MAX - id)),
            Process::Draining(_) => None,
        };
        let mut ranked: Vec<(u32, u64)> = self.processes.iter().filter_map(rank).collect();
        ranked.sort_unstable();
        for (_, id) in ranked.into_iter().zip(0..count).map(|((rank, id), _)| (rank, u64::MAX - id)) {
            let after = match self.processes.get(&id) {
                Some(Process::Alive(running)) if *running > 0 => Some(Process::Draining(*running)),
                Some(Process::Starting | Process::Alive(_) | Process::Draining(_)) | None => None,
            };
            self.put(id, after);
        }
    }

    /// Replaces or removes a process.
    fn put(&mut self, id: u64, process: Option<Process>) {
        let before = match process {
            Some(process) => self.processes.insert(id, process),
            None => self.processes.remove(&id),
        };
        if let Some(number) = before.map(|before| self.stage(before)) {
            *number -= 1;
        }
        if matches!(before, Some(Process::Alive(running)) if running > 0) {
            self.stages.busy -= 1;
        }
        if let Some(process) = process {
            *self.stage(process) += 1;
        }
        if matches!(process, Some(Process::Alive(running)) if running > 0) {
            self.stages.busy += 1;
        }
        if matches!(process, Some(Process::Alive(running)) if running < self.slots) {
            self.with_room.insert(id);
        } else {
            self.with_room.remove(&id);
        }
    }

    fn stage(&mut self, of: Process) -> &mut u64 {
        match of {
            Process::Starting => &mut self.stages.starting,
            Process::Alive(_) => &mut self.stages.alive,
            Process::Draining(_) => &mut self.stages.draining,
        }
    }
}
