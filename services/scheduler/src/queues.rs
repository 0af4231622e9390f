//! What this scheduler knows of the queues, without a read of the index. There is one queue for each set of requirements.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use model::{Requirements, RequirementsId};
use parking_lot::Mutex;
use policy::actions::ProcessingSet;

use crate::view::KnownKinds;

/// Maximum number of queues that are remembered while nothing waits in them.
const QUIET_MAX: usize = 4096;
/// Maximum number of queues of one read. If there are more, each read has others.
const READ_MAX: usize = 512;

/// All known queues, behind one lock.
#[derive(Debug, Default)]
pub(crate) struct Queues(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    known: HashMap<RequirementsId, Known>,
    /// Queues in which something may wait.
    active: HashSet<RequirementsId>,
    /// Whether the index may contain queues that are unknown here.
    incomplete: bool,
    /// Number of reads of a part of the queues so far.
    reads: usize,
}

#[derive(Debug)]
struct Known {
    requirements: Requirements,
    set: Arc<ProcessingSet>,
    /// Version of the kinds of `set`.
    version: u64,
    /// Number of events so far that may have made something wait.
    news: u64,
}

/// A queue to read.
#[derive(Debug, Clone)]
pub(crate) struct ToRead {
    pub(crate) id: RequirementsId,
    /// The executors that can run what waits in it.
    pub(crate) set: Arc<ProcessingSet>,
    /// Number of events when it was chosen.
    pub(crate) news: u64,
}

impl Queues {
    /// Notes that something with these requirements may have started to wait.
    pub(crate) fn news(&self, requirements: &Requirements) {
        self.0.lock().news(requirements);
    }

    /// Notes that something may have started to wait in these queues.
    pub(crate) fn news_of(&self, ids: &[RequirementsId]) {
        let mut inner = self.0.lock();
        for id in ids {
            let Some(known) = inner.known.get_mut(id) else {
                inner.incomplete = true;
                continue;
            };
            known.news += 1;
            inner.active.insert(id.clone());
        }
    }

    /// Notes that something may have started to wait in any queue, known or not.
    pub(crate) fn news_everywhere(&self) {
        let mut inner = self.0.lock();
        inner.incomplete = true;
        let all: Vec<RequirementsId> = inner.known.keys().cloned().collect();
        for id in all {
            if let Some(known) = inner.known.get_mut(&id) {
                known.news += 1;
            }
            inner.active.insert(id);
        }
    }

    /// Whether the index may contain queues that are unknown here. Asked once: the caller then reads their requirements.
    pub(crate) fn take_incomplete(&self) -> bool {
        std::mem::take(&mut self.0.lock().incomplete)
    }

    /// Notes that queues may be unknown.
    pub(crate) fn set_incomplete(&self) {
        self.0.lock().incomplete = true;
    }

    /// Records that nothing waited in a queue when the index was read after event number `news`.
    pub(crate) fn note_empty(&self, id: &RequirementsId, news: u64) {
        let mut inner = self.0.lock();
        if inner.known.get(id).is_some_and(|known| known.news == news) {
            inner.active.remove(id);
        }
        inner.prune();
    }

    /// Whether something may wait in any queue.
    pub(crate) fn any_active(&self) -> bool {
        let inner = self.0.lock();
        inner.incomplete || !inner.active.is_empty()
    }

    /// Whether nothing waits, as far as this scheduler knows, that executors of one of these kinds could run.
    pub(crate) fn is_quiet(&self, of: &BTreeSet<usize>, kinds: &KnownKinds) -> bool {
        let mut inner = self.0.lock();
        let active: Vec<RequirementsId> = inner.active.iter().cloned().collect();
        !inner.incomplete
            && active.iter().all(|id| !inner.set(id, kinds).kinds().any(|kind| of.contains(&kind)))
    }

    /// The executors that can run what has these requirements.
    pub(crate) fn set(&self, requirements: &Requirements, kinds: &KnownKinds) -> Arc<ProcessingSet> {
        let mut inner = self.0.lock();
        let id = requirements.id();
        inner.add(&id, requirements);
        inner.set(&id, kinds)
    }

    /// The queues in which something may wait that executors of one of the kinds `of` could run, or all such queues.
    pub(crate) fn to_read(&self, of: Option<&BTreeSet<usize>>, kinds: &KnownKinds) -> Vec<ToRead> {
        let mut inner = self.0.lock();
        let active: Vec<RequirementsId> = inner.active.iter().cloned().collect();
        let mut found = Vec::new();
        for id in active {
            let set = inner.set(&id, kinds);
            if of.is_none_or(|of| set.kinds().any(|kind| of.contains(&kind))) {
                let news = inner.known.get(&id).map_or(0, |known| known.news);
                found.push(ToRead { id, set, news });
            }
        }
        if found.len() > READ_MAX {
            inner.reads = inner.reads.wrapping_add(1);
            found.sort_by(|a, b| a.id.cmp(&b.id));
            let first = inner.reads.wrapping_mul(READ_MAX) % found.len();
            found.rotate_left(first);
            found.truncate(READ_MAX);
        }
        found
    }
}

impl Inner {
    fn add(&mut self, id: &RequirementsId, requirements: &Requirements) {
        if !self.known.contains_key(id) {
            // Version 0 precedes all versions of kinds.
            let known =
                Known { requirements: requirements.clone(), set: Arc::default(), version: 0, news: 0 };
            self.known.insert(id.clone(), known);
        }
    }

    fn news(&mut self, requirements: &Requirements) {
        let id = requirements.id();
        self.add(&id, requirements);
        if let Some(known) = self.known.get_mut(&id) {
            known.news += 1;
        }
        self.active.insert(id);
    }

    fn set(&mut self, id: &RequirementsId, kinds: &KnownKinds) -> Arc<ProcessingSet> {
        let Some(known) = self.known.get_mut(id) else { return Arc::default() };
        if known.version != kinds.version {
            known.set = Arc::new(ProcessingSet::of(&known.requirements, kinds.offers.iter()));
            known.version = kinds.version;
        }
        Arc::clone(&known.set)
    }

    fn prune(&mut self) {
        if self.known.len() > QUIET_MAX + self.active.len() {
            let active = &self.active;
            self.known.retain(|id, _| active.contains(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{ExecutorType, Pool, Resources};

    use super::*;

    fn kinds(groups: &[&str]) -> KnownKinds {
        let pool = |group: &&str| Pool {
            name: "p".parse().unwrap(),
            properties: [("hwgroup".to_owned(), vec![(*group).to_owned()])].into(),
            root_is_input: false,
            capacity: Resources::default(),
            executor_type: ExecutorType::x86(),
        };
        KnownKinds { offers: Arc::new(groups.iter().map(pool).collect()), version: groups.len() as u64 }
    }

    fn group(value: &str) -> Requirements {
        Requirements::of([("hwgroup", value)])
    }

    fn ids(of: &[ToRead]) -> BTreeSet<RequirementsId> {
        of.iter().map(|it| it.id.clone()).collect()
    }

    #[test]
    fn a_queue_is_read_until_it_was_empty_after_its_last_news() {
        let (queues, kinds) = (Queues::default(), kinds(&["a", "b"]));
        queues.news(&group("a|b"));
        let [it] = queues.to_read(None, &kinds).try_into().unwrap();
        queues.news(&group("a|b"));
        queues.note_empty(&it.id, it.news);
        assert!(queues.any_active(), "something came after the read");
        queues.note_empty(&it.id, it.news + 1);
        assert!(!queues.any_active() && queues.to_read(None, &kinds).is_empty());
        queues.news_of(std::slice::from_ref(&it.id));
        assert!(queues.any_active() && !queues.take_incomplete());
        queues.news_of(&[group("x").id()]);
        assert!(queues.take_incomplete() && !queues.take_incomplete());
    }

    #[test]
    fn only_queues_of_able_executors_are_read_and_disturb() {
        let (queues, kinds) = (Queues::default(), kinds(&["a", "b"]));
        for value in ["a", "b", "a|b", "c"] {
            queues.news(&group(value));
        }
        let of = |kind: usize| BTreeSet::from([kind]);
        let read = |kind: usize| ids(&queues.to_read(Some(&of(kind)), &kinds));
        assert_eq!(read(0), [group("a").id(), group("a|b").id()].into());
        assert_eq!(read(1), [group("b").id(), group("a|b").id()].into());
        assert_eq!(queues.to_read(None, &kinds).len(), 4);
        for it in queues.to_read(Some(&of(1)), &kinds) {
            queues.note_empty(&it.id, it.news);
        }
        assert!(queues.is_quiet(&of(1), &kinds) && !queues.is_quiet(&of(0), &kinds));
    }

    #[test]
    fn a_new_kind_of_executor_extends_the_sets() {
        let queues = Queues::default();
        queues.news(&group("c"));
        let of = BTreeSet::from([2]);
        assert!(queues.to_read(Some(&of), &kinds(&["a", "b"])).is_empty());
        assert_eq!(queues.to_read(Some(&of), &kinds(&["a", "b", "c"])).len(), 1);
    }

    #[test]
    fn of_very_many_queues_each_is_read_in_its_turn() {
        let (queues, kinds) = (Queues::default(), kinds(&["a"]));
        (0..3 * READ_MAX).for_each(|number| queues.news(&group(&format!("a|{number}"))));
        let all: BTreeSet<RequirementsId> = (0..3).flat_map(|_| ids(&queues.to_read(None, &kinds))).collect();
        assert_eq!(all.len(), 3 * READ_MAX);
    }
}
