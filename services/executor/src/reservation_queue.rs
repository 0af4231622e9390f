//! The reservations of an executor: waiting executions that it may get. A hint without a claim to any of them.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use invariant::impossible;
use model::{ExecutionKey, Reservation};

/// Maximum number of reservations; beyond it the last ones are dropped.
const MOST: usize = 4096;

/// Reservations ordered by their turns.
#[derive(Debug, Default)]
pub(crate) struct ReservationQueue {
    places: HashMap<ExecutionKey, Place>,
    /// Reservations that are due.
    due: BTreeMap<Turn, ExecutionKey>,
    /// Reservations that become due at a later time, with their turns.
    delayed: BTreeMap<(Instant, u64), (Turn, ExecutionKey)>,
    /// Number of reservations received so far.
    count: u64,
}

/// The turn of a reservation, then its order of arrival.
type Turn = (u64, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Due(Turn),
    Delayed((Instant, u64)),
}

impl ReservationQueue {
    /// Inserts a reservation. A known one gets the new turn, and becomes due at the earlier of both times.
    pub(crate) fn insert(&mut self, reservation: Reservation, now: Instant) {
        let known = self.remove(&reservation.execution);
        self.count += 1;
        let turn = (reservation.turn, self.count);
        let at = now + Duration::from_millis(reservation.after_ms);
        let at = match known {
            Some(Place::Due(_)) => now,
            Some(Place::Delayed((before, _))) => before.min(at),
            None => at,
        };
        let (key, place) = (reservation.execution, (at, self.count));
        if at <= now {
            self.places.insert(key.clone(), Place::Due(turn));
            self.due.insert(turn, key);
        } else {
            self.places.insert(key.clone(), Place::Delayed(place));
            self.delayed.insert(place, (turn, key));
        }
        self.drop_excess();
    }

    /// Drops the last reservation if there are too many.
    fn drop_excess(&mut self) {
        if self.places.len() <= MOST {
            return;
        }
        let last = self.due.pop_last().map(|(_, key)| key);
        match last.or_else(|| self.delayed.pop_last().map(|(_, (_, key))| key)) {
            Some(key) => {
                self.places.remove(&key);
            }
            None => impossible!("the queue is too long, but has no last reservation"),
        }
    }

    /// Removes an execution that no longer waits.
    pub(crate) fn trim(&mut self, key: &ExecutionKey) {
        self.remove(key);
    }

    fn remove(&mut self, key: &ExecutionKey) -> Option<Place> {
        let place = self.places.remove(key)?;
        let was_there = match &place {
            Place::Due(turn) => self.due.remove(turn).is_some(),
            Place::Delayed(at) => self.delayed.remove(at).is_some(),
        };
        if !was_there {
            impossible!("the reservation of {key} is not at its place in the queue");
        }
        Some(place)
    }

    /// Number of reservations in the queue.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// The first `most` reservations due at `now`, in the order of their turns.
    pub(crate) fn first(&mut self, most: usize, now: Instant) -> Vec<ExecutionKey> {
        self.update_due(now);
        self.due.values().take(most).cloned().collect()
    }

    /// When the next reservation becomes due; may be in the past.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.delayed.keys().next().map(|(at, _)| *at)
    }

    /// Makes reservations due whose time has come.
    pub(crate) fn update_due(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            let (turn, key) = first.remove();
            self.places.insert(key.clone(), Place::Due(turn));
            self.due.insert(turn, key);
        }
    }

    /// Removes and returns all reservations.
    pub(crate) fn take_all(&mut self) -> Vec<ExecutionKey> {
        let all = std::mem::take(self);
        let delayed = all.delayed.into_values().map(|(_, key)| key);
        all.due.into_values().chain(delayed).collect()
    }
}

#[cfg(test)]
mod tests {
    use model::ExecutionId;

    use super::*;

    fn key() -> ExecutionKey {
        ExecutionKey { group: "g".parse().unwrap(), id: ExecutionId::generate() }
    }

    fn reservation(execution: &ExecutionKey, turn: u64, after_ms: u64) -> Reservation {
        Reservation { execution: execution.clone(), turn, after_ms }
    }

    #[test]
    fn the_order_is_that_of_turns_and_then_of_arrival() {
        let (a, b, c) = (key(), key(), key());
        let (mut queue, now) = (ReservationQueue::default(), Instant::now());
        for (key, turn) in [(&a, 7), (&b, 7), (&c, 3)] {
            queue.insert(reservation(key, turn, 0), now);
        }
        assert_eq!(queue.first(64, now), [c.clone(), a.clone(), b.clone()]);
        assert_eq!(queue.first(1, now), std::slice::from_ref(&c));
        // Sent again: it is once in the queue, at its new turn.
        queue.insert(reservation(&b, 1, 0), now);
        assert_eq!(queue.first(64, now), [b, c, a]);
    }

    #[test]
    fn what_waits_no_more_leaves_it() {
        let (a, b) = (key(), key());
        let (mut queue, now) = (ReservationQueue::default(), Instant::now());
        queue.insert(reservation(&a, 1, 0), now);
        queue.insert(reservation(&b, 2, 5), now);
        queue.trim(&a);
        queue.trim(&b);
        queue.trim(&key());
        assert_eq!(queue.len(), 0);
        assert_eq!(queue.next_due(), None);
        assert!(queue.first(64, now + Duration::from_millis(5)).is_empty());
    }

    #[test]
    fn others_go_first_where_it_says_so() {
        let (a, b) = (key(), key());
        let (mut queue, now) = (ReservationQueue::default(), Instant::now());
        queue.insert(reservation(&a, 1, 4), now);
        queue.insert(reservation(&b, 2, 0), now);
        assert_eq!(queue.first(64, now), std::slice::from_ref(&b));
        let due = queue.next_due().unwrap();
        assert_eq!(due, now + Duration::from_millis(4));
        // A repeated reservation is not delayed any longer.
        queue.insert(reservation(&a, 1, 4), now + Duration::from_millis(3));
        assert_eq!(queue.first(64, due), [a.clone(), b]);
        queue.insert(reservation(&a, 1, 4), due);
        assert_eq!(queue.first(1, due), [a]);
        queue.update_due(due);
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn the_last_are_forgotten_when_there_are_too_many() {
        let (mut queue, now) = (ReservationQueue::default(), Instant::now());
        let keys: Vec<_> = (0..=MOST).map(|_| key()).collect();
        for (turn, key) in keys.iter().rev().enumerate() {
            queue.insert(reservation(key, u64::try_from(turn).unwrap(), 0), now);
        }
        assert_eq!(queue.len(), MOST);
        assert_eq!(queue.first(1, now), [keys.last().unwrap().clone()]);
        assert!(!queue.first(MOST, now).contains(keys.first().unwrap()));
        assert_eq!(queue.take_all().len(), MOST);
        assert_eq!(queue.len(), 0);
    }
}
