//! Grants executions before they wait: if the able executors have room for all executions that have just been accepted, and
//! nothing else waits for them, the call that applies the records also grants the executions.

use std::collections::BTreeSet;

use index::actions::{Change, Event};
use policy::{
    Random,
    actions::{Ask, ProcessingSet, Queue, Standing, Waiter, grant, independent},
};
use tokio::sync::MutexGuard;

use crate::{
    Shared,
    grants::Granted,
    records::{ReadRecord, RecordContent},
    view::KnownKinds,
};

/// Maximum number of executions for the same executors that are granted early; more are left to the dispatcher,
/// with its turns of groups.
const MOST: usize = 16;
/// Maximum number of executors that are compared, besides those where an execution is warm.
const EXECUTORS_MAX: usize = 32;

/// Early grants that are not committed yet.
pub(crate) struct Early<'a> {
    pub(crate) granted: Vec<Granted>,
    pub(crate) commits: Vec<index::actions::Grant>,
    _granting: MutexGuard<'a, ()>,
}

/// Decides about the executions that begin to wait with `records`; `None` if none is granted.
pub(crate) fn decide<'a>(shared: &'a Shared, records: &[ReadRecord]) -> Option<Early<'a>> {
    let kinds = shared.view.kinds();
    let waiting: Vec<Waiter> = records.iter().filter_map(|it| waiter(shared, it, &kinds)).collect();
    if waiting.is_empty() {
        return None;
    }
    let sets: Vec<&ProcessingSet> = waiting.iter().map(|it| &*it.set).collect();
    let mut parts: Vec<(BTreeSet<usize>, Vec<Waiter>)> = Vec::new();
    for members in independent(&sets) {
        let of_part = || members.iter().filter_map(|at| waiting.get(*at));
        let able: BTreeSet<usize> = of_part().flat_map(|it| it.set.kinds()).collect();
        let fits = members.len() <= MOST && shared.view.has_room(&able);
        if fits && shared.queues.is_quiet(&able, &kinds) {
            parts.push((able, of_part().cloned().collect()));
        }
    }
    if parts.is_empty() {
        return None;
    }
    // A pass of the dispatcher uses the same room.
    let granting = shared.granting.try_lock().ok()?;
    let now = shared.context.bus.now();
    let mut granted = Vec::new();
    for (able, waiting) in parts {
        granted.extend(decide_part(shared, &able, waiting));
    }
    let commits = granted.iter().map(|it: &Granted| it.to_commit(shared, now)).collect();
    (!granted.is_empty()).then_some(Early { granted, commits, _granting: granting })
}

/// The execution of a record, if it has just been accepted.
fn waiter(shared: &Shared, record: &ReadRecord, kinds: &KnownKinds) -> Option<Waiter> {
    let RecordContent::Accepted(head) = &record.content else { return None };
    let Event { key, change: Change::Open(_, open), .. } = record.event(shared)? else { return None };
    let homes = if shared.affinity { shared.learned.homes(&head.execution.keys) } else { Vec::new() };
    Some(Waiter {
        key: key.clone(),
        demand: open.demand.clone(),
        holders: Vec::new(),
        warm_at: shared.view.executors_at(&homes),
        set: shared.queues.set(&open.demand.requirements, kinds),
        // All of them are granted, so their order does not matter.
        score: 0,
    })
}

/// Grants all of `waiting`, each to start at once, or none: then the dispatcher decides about all.
fn decide_part(shared: &Shared, able: &BTreeSet<usize>, mut waiting: Vec<Waiter>) -> Vec<Granted> {
    // In the order of bands, as a queue is: emergencies get the room before the others are considered.
    waiting.sort_by_key(|it| it.demand.urgency);
    let wanted = shared.view.wanted(waiting.iter());
    let mut random = Random::new(shared.next_seed());
    let open = shared.view.open_executors(able, EXECUTORS_MAX, &wanted, &mut random);
    let asks: Vec<Ask> = open.iter().map(|it| it.ask.clone()).collect();
    // All of them are granted, so the turns of groups do not matter.
    let standing = Standing { used: 0.0, held: 0.0, weight: 1 };
    let queue = Queue { standing, share: None, waiting, unread: None };
    let queues = [queue];
    let grants = grant(&queues, &asks, &Vec::new, shared.grants, shared.context.bus.now()).grants;
    let [Queue { waiting, .. }] = &queues;
    if grants.len() < waiting.len() || grants.iter().any(|it| it.ahead) {
        return Vec::new();
    }
    let granted = grants.into_iter().filter_map(|grant| {
        let demand = waiting.iter().find(|it| it.key == grant.key)?.demand.clone();
        Some(Granted::new(open.get(grant.ask)?, demand, grant))
    });
    granted.collect()
}
