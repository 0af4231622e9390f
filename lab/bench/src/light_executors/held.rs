//! What a light executor holds, and the room that is left: only sums and comparisons.

use std::collections::{HashMap, HashSet};

use model::{Claimed, ExecutionKey, Resources, Room};

/// The claims of one executor.
#[derive(Debug)]
pub(super) struct Held {
    slots: u16,
    capacity: Resources,
    used: Resources,
    /// Actions that hold a slot, with their sizes.
    running: HashMap<ExecutionKey, Resources>,
    /// Actions that have left their slot and whose end is being written.
    finishing: HashSet<ExecutionKey>,
    /// Number of the last grant that was received.
    granted: u64,
    /// Number of the last report of room.
    reports: u64,
}

/// What became of the executions of a grant.
#[derive(Debug, Default)]
pub(super) struct Started {
    /// The executions that start now.
    pub(super) begun: Vec<Claimed>,
    /// Number of executions for which no slot was free.
    pub(super) beyond: u64,
}

impl Held {
    /// Holds nothing yet. `capacity` is what `slots` actions may use together.
    pub(super) fn new(slots: u16, capacity: Resources) -> Self {
        Self {
            slots,
            capacity,
            used: Resources::default(),
            running: HashMap::new(),
            finishing: HashSet::new(),
            granted: 0,
            reports: 0,
        }
    }

    /// Notes that grants up to `number` were sent to this executor.
    pub(super) fn note_granted(&mut self, number: u64) {
        self.granted = self.granted.max(number);
    }

    /// Starts the executions of grant `number`, except those that are held already. One without a free slot starts
    /// too, and is counted.
    pub(super) fn accept(&mut self, number: u64, claimed: Vec<Claimed>) -> Started {
        self.note_granted(number);
        let mut started = Started::default();
        for it in claimed {
            let key = it.record.execution.key();
            if self.running.contains_key(&key) {
                continue;
            }
            started.beyond += u64::from(self.running.len() >= usize::from(self.slots));
            self.used.add(&it.size);
            self.running.insert(key, it.size.clone());
            started.begun.push(it);
        }
        started
    }

    /// Frees the slot of an action whose end is written next.
    pub(super) fn leave_slot(&mut self, key: &ExecutionKey) {
        if let Some(size) = self.running.remove(key) {
            self.used.take(&size);
            self.finishing.insert(key.clone());
        }
    }

    /// Forgets an action after its end was written.
    pub(super) fn release(&mut self, key: &ExecutionKey) {
        self.finishing.remove(key);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.finishing.is_empty()
    }

    /// Keys of all actions that it holds.
    pub(super) fn keys(&self) -> Vec<ExecutionKey> {
        self.running
            .keys()
            .chain(self.finishing.iter().filter(|key| !self.running.contains_key(key)))
            .cloned()
            .collect()
    }

    pub(super) fn used(&self) -> &Resources {
        &self.used
    }

    /// The room as a new report; a closed executor has none.
    pub(super) fn room(&mut self, is_open: bool) -> Room {
        self.reports += 1;
        let idle = self.running.is_empty();
        let mut room = Room { number: self.reports, granted: self.granted, idle, ..Room::default() };
        if is_open {
            let running = u16::try_from(self.running.len()).unwrap_or(u16::MAX);
            (room.free, room.starts) = (self.capacity.clone(), self.slots.saturating_sub(running));
            room.free.take(&self.used);
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use model::{ExecutionRecord, Sequence};

    use super::*;
    use crate::accepted::execution;

    fn claimed() -> Claimed {
        let group = "g".parse().unwrap();
        let record = ExecutionRecord::accepted(execution(&group, model::Millis(1)));
        Claimed { record, sequence: Sequence(1), size: Resources::new(1000, 1 << 30) }
    }

    #[test]
    fn the_room_follows_grants_and_ends() {
        let mut held = Held::new(2, Resources::new(2000, 2 << 30));
        let room = held.room(true);
        assert_eq!((room.number, room.granted, room.starts, room.idle), (1, 0, 2, true));
        let (one, other) = (claimed(), claimed());
        let key = one.record.execution.key();
        let started = held.accept(7, vec![one.clone(), other]);
        assert_eq!((started.begun.len(), started.beyond), (2, 0));
        let room = held.room(true);
        assert_eq!((room.granted, room.starts, room.free.cpu_millis, room.idle), (7, 0, 0, false));
        assert_eq!(held.accept(7, vec![one]).begun.len(), 0, "it is held already");
        assert_eq!(held.accept(8, vec![claimed()]).beyond, 1);
        held.leave_slot(&key);
        assert_eq!((held.keys().len(), held.room(false).starts), (3, 0));
        held.release(&key);
        assert_eq!((held.keys().len(), held.is_empty()), (2, false));
    }
}
