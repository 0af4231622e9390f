//! Which audit events are written: a caller that is refused a thousand times a second must not fill the stream.

use std::collections::{BTreeMap, HashMap, btree_map};

use model::{AuditKind, Millis};

use crate::rate::{Bucket, Rate};

/// Events of callers that are refused, and of those that do something, each on average and at once.
const REFUSALS: Rate = Rate::of(1, 20);
const ACTS: Rate = Rate::of(20, 200);
/// Events of all callers that are refused together. A stranger may have any number of names and addresses.
const ALL_REFUSALS: Rate = Rate::of(100, 1000);
/// Maximum number of callers that are known at once.
const CALLERS_MAX: usize = 10_000;
/// Time between two grants of the same caller from the same address that are written.
const GRANT_EVERY_MS: u64 = 60_000;

/// A caller, and whether its events are refusals: these have a limit of their own, so that they hide nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    /// Number that identifies the caller.
    caller: u64,
    is_refusal: bool,
}

impl Key {
    fn rate(self) -> Rate {
        if self.is_refusal { REFUSALS } else { ACTS }
    }
}

/// Decides which events of which callers are written, and counts the others.
#[derive(Debug)]
pub struct Gate<E> {
    buckets: HashMap<Key, Bucket>,
    all_refusals: Bucket,
    /// The last event of each caller that was left out, and the number of those before it.
    held: BTreeMap<Key, (E, u64)>,
    grants: HashMap<u64, Millis>,
}

/// What becomes of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Passage<E> {
    /// It is written, with the number of events that were left out before it.
    Write { event: E, dropped: u64 },
    /// It is held: written later, with the number of others, unless the caller sends more.
    Held,
    /// It is left out, and not even counted for its caller: too many callers are held.
    Lost,
}

impl<E> Default for Gate<E> {
    fn default() -> Self {
        Self {
            buckets: HashMap::new(),
            all_refusals: Bucket::default(),
            held: BTreeMap::new(),
            grants: HashMap::new(),
        }
    }
}

impl<E> Gate<E> {
    /// Decides about an event of a caller.
    pub fn pass(&mut self, caller: u64, kind: AuditKind, event: E, now: Millis) -> Passage<E> {
        let key = Key { caller, is_refusal: kind == AuditKind::Refusal };
        if self.take(key, now) {
            let dropped = self.held.remove(&key).map_or(0, |(_, before)| before.saturating_add(1));
            return Passage::Write { event, dropped };
        }
        let room = self.held.len() < CALLERS_MAX;
        match self.held.entry(key) {
            btree_map::Entry::Occupied(mut entry) => {
                let (last, before) = entry.get_mut();
                *last = event;
                *before = before.saturating_add(1);
                Passage::Held
            }
            btree_map::Entry::Vacant(entry) if room => {
                entry.insert((event, 0));
                Passage::Held
            }
            btree_map::Entry::Vacant(_) => Passage::Lost,
        }
    }

    /// Whether it is time to write that a caller was let in; `caller` identifies it together with its address.
    pub fn is_grant_due(&mut self, caller: u64, now: Millis) -> bool {
        let is_due = |last: &Millis| now.0.saturating_sub(last.0) >= GRANT_EVERY_MS;
        if self.grants.get(&caller).is_some_and(|last| !is_due(last)) {
            return false;
        }
        if self.grants.len() >= CALLERS_MAX {
            self.grants.retain(|_, last| !is_due(last));
        }
        if self.grants.len() >= CALLERS_MAX {
            return false;
        }
        self.grants.insert(caller, now);
        true
    }

    /// Held events whose callers have room again, each with the number of those left out before it.
    pub fn due(&mut self, now: Millis) -> Vec<(E, u64)> {
        let keys: Vec<Key> = self.held.keys().copied().collect();
        let due: Vec<Key> = keys.into_iter().filter(|key| self.take(*key, now)).collect();
        due.into_iter().filter_map(|key| self.held.remove(&key)).collect()
    }

    /// Whether events are held.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    fn take(&mut self, key: Key, now: Millis) -> bool {
        if self.buckets.len() >= CALLERS_MAX && !self.buckets.contains_key(&key) {
            self.buckets.retain(|known, bucket| !bucket.is_full(known.rate(), now));
        }
        if self.buckets.len() >= CALLERS_MAX && !self.buckets.contains_key(&key) {
            return false;
        }
        if key.is_refusal {
            // After the caller's own: one that floods would use up what is for all.
            let mut own = self.buckets.get(&key).copied().unwrap_or_default();
            if own.take(key.rate(), now).is_err() || self.all_refusals.take(ALL_REFUSALS, now).is_err() {
                return false;
            }
            self.buckets.insert(key, own);
            return true;
        }
        self.buckets.entry(key).or_default().take(key.rate(), now).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Millis {
        Millis(1_000_000_000 + ms)
    }

    #[test]
    fn a_flood_is_counted_and_its_last_event_written_later() {
        let mut gate = Gate::default();
        let written = (0..1000).filter(|event| {
            matches!(gate.pass(7, AuditKind::Refusal, *event, at(0)), Passage::Write { dropped: 0, .. })
        });
        assert_eq!(written.count(), 20);
        // Others, and what the same caller does, are not affected.
        assert_eq!(gate.pass(8, AuditKind::Refusal, 1, at(0)), Passage::Write { event: 1, dropped: 0 });
        assert_eq!(gate.pass(7, AuditKind::Cancel, 2, at(0)), Passage::Write { event: 2, dropped: 0 });
        assert!(gate.holds() && gate.due(at(10)).is_empty());
        assert_eq!(gate.due(at(1000)), [(999, 979)]);
        assert!(!gate.holds());
    }

    #[test]
    fn any_number_of_strangers_write_a_limited_number_of_refusals() {
        let mut gate = Gate::default();
        let passed = (0..50_000_u64).filter(|caller| {
            matches!(gate.pass(*caller, AuditKind::Refusal, (), at(0)), Passage::Write { .. })
        });
        assert_eq!(passed.count(), 1000);
        assert!(gate.buckets.len() <= CALLERS_MAX && gate.held.len() <= CALLERS_MAX);
        assert!(matches!(gate.pass(60_000, AuditKind::Quota, (), at(0)), Passage::Write { .. }));
    }

    #[test]
    fn a_grant_is_written_once_a_minute() {
        let mut gate = Gate::<()>::default();
        let due = [0, 1, 59_999, 60_000, 60_001].map(|ms| gate.is_grant_due(1, at(ms)));
        assert_eq!(due, [true, false, false, true, false]);
        assert!(gate.is_grant_due(2, at(60_001)));
    }

    proptest! {
        #[test]
        fn each_event_is_written_or_counted_once(
            steps in proptest::collection::vec((0..3_u64, 0..300_u64, any::<bool>()), 1..300),
        ) {
            let (mut gate, mut now, mut accounted) = (Gate::default(), 0, 0_u64);
            let total = steps.len() as u64;
            for (caller, pause, is_refusal) in steps {
                now += pause;
                let kind = if is_refusal { AuditKind::Refusal } else { AuditKind::Cancel };
                match gate.pass(caller, kind, (), at(now)) {
                    Passage::Write { dropped, .. } => accounted += 1 + dropped,
                    Passage::Held => {}
                    Passage::Lost => prop_assert!(false, "few callers are never lost"),
                }
            }
            let later = gate.due(at(now + 3_600_000));
            prop_assert!(!gate.holds());
            accounted += later.into_iter().map(|((), dropped)| 1 + dropped).sum::<u64>();
            prop_assert_eq!(accounted, total);
        }
    }
}
