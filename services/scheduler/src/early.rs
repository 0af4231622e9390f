//! Grants executions before they wait: if nothing waits in a pool and it has room for all of its executions that have
//! just been accepted, the call that applies their records also grants them.

use std::collections::{BTreeMap, BTreeSet};

use index::actions::{Change, Event, Move};
use model::{ExecutionPhase, ExecutorId, PoolName};
use policy::{
    Random,
    actions::{Ask, Queue, Standing, Waiter, grant},
};
use tokio::sync::MutexGuard;

use crate::{
    Shared,
    grants::Granted,
    records::{ReadRecord, RecordContent},
    view::OpenExecutor,
};

/// Maximum number of executions of a pool that are granted early; more are left to the dispatcher,
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
    let mut pools: BTreeMap<&PoolName, Vec<Waiter>> = BTreeMap::new();
    for it in records {
        if let Change::Open(_, open) = &it.event.change {
            let of_pool = pools.entry(&open.pool).or_default();
            of_pool.extend(waiter(shared, it));
        }
    }
    let is_open = |pool: &PoolName| shared.is_quiet(pool) && shared.view.has_room(pool);
    pools.retain(|pool, waiting| (1..=MOST).contains(&waiting.len()) && is_open(pool));
    if pools.is_empty() {
        return None;
    }
    // A pass of the dispatcher uses the same room.
    let granting = shared.granting.try_lock().ok()?;
    let now = shared.context.bus.now();
    let (mut granted, mut commits) = (Vec::new(), Vec::new());
    for (pool, waiting) in pools {
        for (it, open) in decide_pool(shared, pool, waiting) {
            commits.push(it.to_commit(shared, open.after, now));
            granted.push(it);
        }
    }
    (!granted.is_empty()).then_some(Early { granted, commits, _granting: granting })
}

/// The execution of a record, if it has just been accepted.
fn waiter(shared: &Shared, record: &ReadRecord) -> Option<Waiter> {
    let Event { key, change: Change::Open(Move::Waits, open), .. } = &record.event else { return None };
    let RecordContent::Open(content) = &record.content else { return None };
    if content.phase != ExecutionPhase::Accepted {
        return None;
    }
    let homes = if shared.affinity { shared.learned.homes(&content.execution.keys) } else { Vec::new() };
    Some(Waiter {
        key: key.clone(),
        demand: open.demand.clone(),
        holders: Vec::new(),
        warm_at: shared.view.executors_at(&homes),
    })
}

/// Grants all of `waiting`, each to start at once, or none: then the dispatcher decides about all.
fn decide_pool(shared: &Shared, pool: &PoolName, mut waiting: Vec<Waiter>) -> Vec<(Granted, OpenExecutor)> {
    // In the order of bands, as a queue is: emergencies get the room before the others are considered.
    waiting.sort_by_key(|it| it.demand.urgency);
    let warm: BTreeSet<ExecutorId> = waiting.iter().flat_map(|it| it.warm_at.iter().cloned()).collect();
    let mut random = Random::new(shared.next_seed());
    let open = shared.view.open_executors(pool, EXECUTORS_MAX, &warm, &mut random);
    let asks: Vec<Ask> = open.iter().map(|it| it.ask.clone()).collect();
    // All of them are granted, so the turns of groups do not matter.
    let queue = Queue { standing: Standing { used: 0.0, held: 0.0, weight: 1 }, share: None, waiting };
    let queues = [queue];
    let grants = grant(&queues, &asks, &[], shared.grants, shared.context.bus.now());
    let [Queue { waiting, .. }] = &queues;
    if grants.len() < waiting.len() || grants.iter().any(|it| it.ahead) {
        return Vec::new();
    }
    let granted = grants.into_iter().filter_map(|grant| {
        let open = open.get(grant.ask)?.clone();
        let demand = waiting.iter().find(|it| it.key == grant.key)?.demand.clone();
        Some((Granted { executor: open.ask.executor.clone(), demand, grant }, open))
    });
    granted.collect()
}
