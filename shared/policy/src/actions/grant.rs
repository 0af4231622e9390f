//! Decides which waiting executions the executors get that ask for work.
//!
//! Groups take turns by their past use ([`Standing`]). Inside a group the order is that of its queue; an execution that
//! is warm on an asking executor may pass those that arrived at about the same time. An execution that does not fit
//! keeps its place: room is reserved for it on one executor (conservative backfill), so that a large action is not
//! starved by small ones. An execution that waits only for a custom resource reserves only that resource at first, so
//! that others need not wait for it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use model::{Demand, ExecutionKey, ExecutorId, Millis, ResourceName, Resources};

use super::{
    fair::{Standing, occupancy},
    route::rendezvous,
};

/// A waiting execution as input of the decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiter {
    /// Key of the execution.
    pub key: ExecutionKey,
    /// Resources and other requirements of the execution.
    pub demand: Demand,
    /// Executors that already have a copy of it.
    pub holders: Vec<ExecutorId>,
    /// Executors where it is warm.
    pub warm_at: Vec<ExecutorId>,
    /// Whether one of these has room and was notified just now: the other executors let it go first.
    pub for_warm: bool,
}

/// The first waiting executions of a group, in queue order.
#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    /// Past and current use of the group.
    pub standing: Standing,
    /// Executions from the head of the queue.
    pub waiting: Vec<Waiter>,
}

/// An executor that asks for work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Id of the executor.
    pub executor: ExecutorId,
    /// Total resources of the executor.
    pub capacity: Resources,
    /// Free resources of the executor.
    pub free: Resources,
    /// Number of executions that it can start now.
    pub starts: u32,
    /// Number of executions that it accepts in its queue beyond that.
    pub ahead: u32,
    /// Whether it has no executions at all.
    pub idle: bool,
}

/// An executor of the pool, whether it asks or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Id of the executor.
    pub executor: ExecutorId,
    /// Total resources of the executor.
    pub capacity: Resources,
}

/// Waiting times of the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantRules {
    /// How long others pass an execution that waits only for a custom resource, before room is reserved for it.
    pub custom_patience: Duration,
    /// Maximum difference between the arrivals of two executions of a group for the second to pass the first
    /// because it is warm.
    pub affinity_wait: Duration,
}

/// An execution that an executor gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Key of the execution.
    pub key: ExecutionKey,
    /// Index of the ask that it answers.
    pub ask: usize,
    /// Resources that it will hold there.
    pub size: Resources,
    /// Whether it goes to the queue of the executor, because it can start only when another one ends.
    pub ahead: bool,
}

/// Number of executions of a group examined for a warm one.
const WINDOW: usize = 32;
/// Interval after which room for a waiting execution is reserved on one more executor.
const WIDEN: Duration = Duration::from_secs(5);
/// How long an execution waits for an executor other than those that failed it.
const AVOIDED: Duration = Duration::from_secs(10);

/// Decides which executions the asking executors get. `members` are all executors of the pool.
pub fn grant(
    queues: &[Queue],
    asks: &[Ask],
    members: &[Member],
    rules: GrantRules,
    now: Millis,
) -> Vec<Grant> {
    let mut turns: Vec<Turn<'_>> = queues.iter().map(Turn::of).collect();
    let mut table = Table { places: asks.iter().map(Place::of).collect(), members, rules, now };
    let mut grants = Vec::new();
    while table.has_room()
        && let Some(turn) = next_turn(&mut turns)
        && let Some(waiter) = turn.next(&table)
    {
        if let Some((ask, ahead)) = table.find(waiter) {
            let size = table.give(ask, waiter, ahead);
            turn.standing.hold(occupancy(&size).units());
            grants.push(Grant { key: waiter.key.clone(), ask, size, ahead });
        } else if !waiter.for_warm {
            table.keep_room(waiter);
        }
    }
    grants
}

/// The waiting executions of a group that are left.
struct Turn<'a> {
    standing: Standing,
    left: VecDeque<&'a Waiter>,
}

fn next_turn<'t, 'a>(turns: &'t mut [Turn<'a>]) -> Option<&'t mut Turn<'a>> {
    let open = turns.iter_mut().filter(|turn| !turn.left.is_empty());
    open.min_by(|a, b| a.standing.debt().total_cmp(&b.standing.debt()))
}

impl<'a> Turn<'a> {
    fn of(queue: &'a Queue) -> Self {
        Self { standing: queue.standing, left: queue.waiting.iter().collect() }
    }

    /// The next execution: the first, unless that one could start elsewhere just as well and another one that arrived
    /// at about the same time is warm where there is room.
    fn next(&mut self, table: &Table<'_>) -> Option<&'a Waiter> {
        let first = self.left.front()?;
        let wait = table.rules.affinity_wait;
        let (earliest, latest) = (first.demand.since_ms, first.demand.since_ms.after(wait));
        let equal = |other: &Waiter| {
            let since = other.demand.since_ms;
            other.demand.priority == first.demand.priority && since <= latest && since.after(wait) >= earliest
        };
        let suits = |other: &Waiter| equal(other) && table.is_warm_with_room(other);
        let passes = || self.left.iter().take(WINDOW).position(|other| suits(other));
        let at = if table.can_start(first) { passes() } else { None };
        self.left.remove(at.unwrap_or(0))
    }
}

/// The room that is left on the asking executors.
struct Table<'a> {
    places: Vec<Place<'a>>,
    members: &'a [Member],
    rules: GrantRules,
    now: Millis,
}

struct Place<'a> {
    ask: &'a Ask,
    free: Resources,
    starts: u32,
    ahead: u32,
    idle: bool,
    /// Room is reserved for an execution that does not fit, so the executor accepts nothing more in its queue.
    kept: bool,
    /// Custom resources that are already reserved.
    kept_for: BTreeSet<&'a ResourceName>,
}

impl<'a> Place<'a> {
    fn of(ask: &'a Ask) -> Self {
        let Ask { free, starts, ahead, idle, .. } = ask;
        let (free, kept_for) = (free.clone(), BTreeSet::new());
        Self { ask, free, starts: *starts, ahead: *ahead, idle: *idle, kept: false, kept_for }
    }

    fn size(&self, demand: &Demand) -> Resources {
        if demand.exclusive {
            let whole = &self.ask.capacity;
            return Resources { custom: demand.size.custom.clone(), ..whole.clone() };
        }
        demand.size.clamped(&self.ask.capacity)
    }

    fn can_start(&self, demand: &Demand) -> bool {
        self.starts > 0 && (!demand.exclusive || self.idle) && self.size(demand).fits(&self.free)
    }

    /// An execution that holds a custom resource must not merely wait in a queue.
    fn can_take_ahead(&self, demand: &Demand) -> bool {
        self.ahead > 0 && !self.kept && !demand.exclusive && demand.size.custom.is_empty()
    }
}

impl<'a> Table<'a> {
    fn has_room(&self) -> bool {
        self.places.iter().any(|place| place.starts > 0 || place.ahead > 0)
    }

    fn eligible(&self, place: &Place<'_>, waiter: &Waiter) -> bool {
        let ask = place.ask;
        may_run(&ask.executor, &ask.capacity, waiter)
            && (!waiter.for_warm || waiter.warm_at.contains(&ask.executor))
            && (!waiter.demand.avoid.contains(&ask.executor) || self.nobody_better(waiter))
    }

    /// Whether only executors that failed the execution can run it, or it has waited long enough for others.
    fn nobody_better(&self, waiter: &Waiter) -> bool {
        let better = |member: &&Member| {
            !waiter.demand.avoid.contains(&member.executor)
                && may_run(&member.executor, &member.capacity, waiter)
        };
        self.now.since(waiter.demand.since_ms) > AVOIDED || !self.members.iter().any(|member| better(&member))
    }

    fn can_start(&self, waiter: &Waiter) -> bool {
        self.places.iter().any(|place| place.can_start(&waiter.demand) && self.eligible(place, waiter))
    }

    fn is_warm_with_room(&self, waiter: &Waiter) -> bool {
        self.places.iter().any(|place| {
            waiter.warm_at.contains(&place.ask.executor)
                && place.can_start(&waiter.demand)
                && self.eligible(place, waiter)
        })
    }

    /// The executor that gets the execution, and whether the execution has to wait there.
    fn find(&self, waiter: &Waiter) -> Option<(usize, bool)> {
        let demand = &waiter.demand;
        let open = || self.places.iter().enumerate().filter(|(_, place)| self.eligible(place, waiter));
        let rank = |place: &Place<'_>| {
            let warm = waiter.warm_at.contains(&place.ask.executor);
            (warm, 1.0 - place.free.share_of(&place.ask.capacity))
        };
        let better = |a: &(usize, &Place<'_>), b: &(usize, &Place<'_>)| {
            let ((warm_a, full_a), (warm_b, full_b)) = (rank(a.1), rank(b.1));
            warm_a.cmp(&warm_b).then(full_b.total_cmp(&full_a)).then(b.0.cmp(&a.0))
        };
        if let Some((index, _)) = open().filter(|(_, place)| place.can_start(demand)).max_by(better) {
            return Some((index, false));
        }
        let ahead = open().filter(|(_, place)| place.can_take_ahead(demand));
        ahead
            .max_by_key(|(index, place)| (place.ahead, std::cmp::Reverse(*index)))
            .map(|(index, _)| (index, true))
    }

    fn give(&mut self, ask: usize, waiter: &Waiter, ahead: bool) -> Resources {
        let Some(place) = self.places.get_mut(ask) else { return Resources::default() };
        let size = place.size(&waiter.demand);
        if ahead {
            place.ahead -= 1;
        } else {
            place.free.take(&size);
            place.starts -= 1;
            place.idle = false;
            if waiter.demand.exclusive {
                (place.starts, place.ahead) = (0, 0);
            }
        }
        size
    }

    /// Reserves room for an execution that no asking executor can start.
    fn keep_room(&mut self, waiter: &'a Waiter) {
        let demand = &waiter.demand;
        let pinned = self.pinned(waiter);
        let patient = self.now.since(demand.since_ms) <= self.rules.custom_patience;
        for at in 0..self.places.len() {
            let eligible = self.places.get(at).is_some_and(|place| self.eligible(place, waiter));
            let Some(place) = self.places.get_mut(at).filter(|_| eligible) else { continue };
            let size = place.size(demand);
            let waits_for_custom = !size.fits_custom(&place.free);
            if waits_for_custom {
                // Later executions must not get the custom resource that it waits for.
                place.free.take(&Resources { custom: size.custom.clone(), ..Resources::default() });
                let behind = size.custom.keys().any(|name| place.kept_for.contains(name));
                if patient || behind {
                    continue;
                }
                place.kept_for.extend(demand.size.custom.keys());
            } else if !pinned.contains(&place.ask.executor) {
                continue;
            }
            place.free.take(&Resources { custom: BTreeMap::new(), ..size });
            place.kept = true;
            if demand.exclusive {
                place.starts = 0;
            }
        }
    }

    /// Executors on which room is reserved for the execution: one at first, more the longer it waits.
    fn pinned(&self, waiter: &Waiter) -> BTreeSet<ExecutorId> {
        let asking = self.places.iter().map(|place| (&place.ask.executor, &place.ask.capacity));
        let all = self.members.iter().map(|member| (&member.executor, &member.capacity)).chain(asking);
        let able: BTreeSet<&ExecutorId> = all
            .filter(|(executor, capacity)| may_run(executor, capacity, waiter))
            .map(|(executor, _)| executor)
            .collect();
        let name = waiter.key.to_string();
        let mut ranked: Vec<_> =
            able.into_iter().map(|executor| (rendezvous(&name, executor), executor)).collect();
        ranked.sort_unstable();
        let since = self.now.since(waiter.demand.since_ms);
        let many = usize::try_from(since.as_secs() / WIDEN.as_secs()).unwrap_or(usize::MAX).saturating_add(1);
        ranked.into_iter().take(many).map(|(_, executor)| executor.clone()).collect()
    }
}

/// Whether `executor` may ever run the execution.
fn may_run(executor: &ExecutorId, capacity: &Resources, waiter: &Waiter) -> bool {
    waiter.demand.asked().fits(capacity) && !waiter.holders.contains(executor)
}

#[cfg(test)]
mod tests;
