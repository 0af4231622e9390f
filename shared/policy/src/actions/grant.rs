//! Decides which waiting executions the executors get that have room.
//!
//! Executions of the band `emergency` come first, and alone may use what executors keep for them. Otherwise groups take
//! turns by their past use ([`Standing`]). A group that holds its share or more comes after all groups that hold less,
//! so that it gets what they cannot use. Inside a group the order is that of its queue; an execution that
//! is warm on an executor with room may pass those that arrived at about the same time. An execution that does not fit
//! keeps its place: room is reserved for it on one executor (conservative backfill), so that a large action is not
//! starved by small ones. An execution that waits only for a custom resource reserves only that resource at first, so
//! that others need not wait for it.

use std::{
    cell::LazyCell,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use invariant::impossible;
use model::{
    ActionKey, Demand, ExecutionKey, ExecutorId, FetchRoom, KeptRoom, Millis, Priority, ResourceName,
    Resources,
};

use super::{
    fair::{Standing, occupancy},
    image_fetch::takes_images,
    processing_set::ProcessingSet,
    turns::Turn,
};
use crate::hash::Hasher;

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
    /// The kinds of executors that meet its requirements.
    pub set: Arc<ProcessingSet>,
    /// Its score in the queue: rank and place.
    pub score: u64,
}

/// The first waiting executions of a group, in queue order.
#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    /// Past and current use of the group.
    pub standing: Standing,
    /// ESU that the group may hold on these executors while others wait: its set point. `None` if no group has a quota
    /// of their executor types.
    pub share: Option<f64>,
    /// Executions from the head of the queue.
    pub waiting: Vec<Waiter>,
    /// Most urgent band of the executions behind these, which were not read; `None` if there are none.
    pub unread: Option<Priority>,
}

/// An executor with room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Id of the executor.
    pub executor: ExecutorId,
    /// Kind of the executor, for the processing sets.
    pub kind: usize,
    /// Total resources of the executor.
    pub capacity: Resources,
    /// Free resources of the executor.
    pub free: Resources,
    /// Number of executions that it can start now.
    pub starts: u32,
    /// Part of both that only the band `emergency` may use, unless the executor is idle.
    pub kept: KeptRoom,
    /// Number of executions that it accepts in its queue beyond that.
    pub ahead: u32,
    /// Whether it has no executions at all.
    pub idle: bool,
    /// Keys of the images that it has.
    pub images: Arc<BTreeSet<ActionKey>>,
    /// Room for executions whose images it has to fetch; `None`: as many as it takes.
    pub fetches: Option<FetchRoom>,
}

/// An executor, whether it has room or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Id of the executor.
    pub executor: ExecutorId,
    /// Kind of the executor, for the processing sets.
    pub kind: usize,
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

/// What a decision grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The grants in the order of turns.
    pub grants: Vec<Grant>,
    /// Whether it ended at the turn of an execution that was not read.
    pub is_cut: bool,
}

/// Number of executions of a group examined for a warm one.
const AFFINITY_WINDOW: usize = 32;
/// Maximum number of times its own cost by which an execution may be behind the first in the queue and pass it. It bounds
/// how long the first, and other invocations behind it, wait for warm ones of one invocation.
const PASSES_MAX: f64 = 32.0;
/// Interval after which room for a waiting execution is reserved on one more executor.
const WIDEN_INTERVAL: Duration = Duration::from_secs(5);
/// How long an execution waits for an executor other than those that failed it.
const AVOID_TIME: Duration = Duration::from_secs(10);

/// Decides which executions the executors with room get. `members` returns all executors that can run some of them; it is
/// called only if something does not fit or avoids an executor.
pub fn grant(
    queues: &[Queue],
    asks: &[Ask],
    members: &dyn Fn() -> Vec<Member>,
    rules: GrantRules,
    now: Millis,
) -> Decision {
    let mut groups: Vec<GroupQueue<'_>> = queues.iter().map(GroupQueue::of).collect();
    let mut asking = AskingExecutors {
        executors: asks.iter().map(AskingExecutor::of).collect(),
        members: LazyCell::new(members),
        rules,
        now,
    };
    let (mut grants, mut is_cut) = (Vec::new(), false);
    while asking.has_room()
        && let Some(group) = next_group(&mut groups)
    {
        let Some(waiter) = group.next(&asking) else {
            is_cut = true;
            break;
        };
        if let Some((ask, ahead)) = asking.find(waiter) {
            let size = asking.assign(ask, waiter, ahead);
            group.standing.hold(occupancy(&size).units());
            grants.push(Grant { key: waiter.key.clone(), ask, size, ahead });
        } else {
            asking.reserve_room(waiter);
        }
    }
    Decision { grants, is_cut }
}

/// The waiting executions of a group that are left.
struct GroupQueue<'a> {
    standing: Standing,
    share: Option<f64>,
    left: VecDeque<&'a Waiter>,
    unread: Option<Priority>,
}

/// The group whose turn it is, of those with executions, read or not.
fn next_group<'t, 'a>(groups: &'t mut [GroupQueue<'a>]) -> Option<&'t mut GroupQueue<'a>> {
    let open = groups.iter_mut().filter(|group| !group.left.is_empty() || group.unread.is_some());
    open.min_by_key(|group| group.turn())
}

impl<'a> GroupQueue<'a> {
    fn of(queue: &'a Queue) -> Self {
        let Queue { standing, share, unread, .. } = *queue;
        Self { standing, share, unread, left: queue.waiting.iter().collect() }
    }

    /// Whether it comes first depends on its next execution, because the queue is in the order of bands.
    fn turn(&self) -> Turn {
        let band = self.left.front().map(|first| first.demand.urgency.band).or(self.unread);
        Turn::of(&self.standing, self.share, band.is_some_and(Priority::is_emergency))
    }

    /// The next execution: the first, unless that one could start elsewhere just as well and another one that arrived
    /// at about the same time is warm where there is room.
    fn next(&mut self, asking: &AskingExecutors<'_>) -> Option<&'a Waiter> {
        let first = self.left.front()?;
        let wait = asking.rules.affinity_wait;
        let (earliest, latest) = (first.demand.since_ms, first.demand.since_ms.after(wait));
        let equal = |other: &Waiter| {
            let since = other.demand.since_ms;
            other.demand.urgency == first.demand.urgency && since <= latest && since.after(wait) >= earliest
        };
        let near = |other: &Waiter| {
            let cost = occupancy(&other.demand.size).units() * other.demand.expected_ms as f64;
            other.score.saturating_sub(first.score) as f64 <= PASSES_MAX * cost
        };
        let suits = |other: &Waiter| equal(other) && near(other) && asking.is_warm_with_room(other);
        let passes = || self.left.iter().take(AFFINITY_WINDOW).position(|other| suits(other));
        let at = if asking.can_start(first) { passes() } else { None };
        self.left.remove(at.unwrap_or(0))
    }
}

/// The room that is left on the executors.
struct AskingExecutors<'a> {
    executors: Vec<AskingExecutor<'a>>,
    members: LazyCell<Vec<Member>, &'a dyn Fn() -> Vec<Member>>,
    rules: GrantRules,
    now: Millis,
}

struct AskingExecutor<'a> {
    ask: &'a Ask,
    free: Resources,
    starts: u32,
    ahead: u32,
    idle: bool,
    /// Number of executions granted here whose images are fetched first.
    fetching: u16,
    /// Room is reserved for an execution that does not fit, so the executor accepts nothing more in its queue.
    reserved: bool,
    /// Custom resources that are already reserved.
    reserved_custom: BTreeSet<&'a ResourceName>,
}

impl<'a> AskingExecutor<'a> {
    fn of(ask: &'a Ask) -> Self {
        let Ask { free, starts, ahead, idle, .. } = ask;
        let (free, reserved_custom) = (free.clone(), BTreeSet::new());
        let (starts, ahead, idle) = (*starts, *ahead, *idle);
        Self { ask, free, starts, ahead, idle, fetching: 0, reserved: false, reserved_custom }
    }

    fn size(&self, demand: &Demand) -> Resources {
        if demand.exclusive {
            let whole = &self.ask.capacity;
            return Resources { custom: demand.size.custom.clone(), ..whole.clone() };
        }
        demand.size.clamped(&self.ask.capacity)
    }

    /// Whether it has the image of the execution, or the execution needs none.
    fn has_image(&self, demand: &Demand) -> bool {
        let has = |key: Option<ActionKey>| key.is_some_and(|key| self.ask.images.contains(&key));
        demand.images.as_ref().is_none_or(|images| has(images.image))
    }

    /// Whether its room for fetched images is large enough.
    fn takes_images(&self, demand: &Demand) -> bool {
        let Some(images) = &demand.images else { return true };
        let room = self.ask.fetches.as_ref();
        let is_left = room.is_none_or(|room| room.left > self.fetching);
        self.has_image(demand) || (is_left && takes_images(images, false, room))
    }

    /// What is kept for emergencies bounds neither them nor the first execution of an idle executor, which otherwise
    /// would never run if it needs the whole executor.
    fn can_start(&self, demand: &Demand) -> bool {
        let mut free = self.free.clone();
        let mut starts = self.starts;
        if !demand.urgency.band.is_emergency() && !self.idle {
            free.take(&self.ask.kept.resources);
            starts = starts.saturating_sub(self.ask.kept.starts.into());
        }
        starts > 0 && (!demand.exclusive || self.idle) && self.size(demand).fits(&free)
    }

    /// An execution that holds a custom resource must not merely wait in a queue.
    fn can_queue(&self, demand: &Demand) -> bool {
        self.ahead > 0 && !self.reserved && !demand.exclusive && demand.size.custom.is_empty()
    }
}

impl<'a> AskingExecutors<'a> {
    fn has_room(&self) -> bool {
        self.executors.iter().any(|executor| executor.starts > 0 || executor.ahead > 0)
    }

    fn eligible(&self, executor: &AskingExecutor<'_>, waiter: &Waiter) -> bool {
        let ask = executor.ask;
        may_run(&ask.executor, ask.kind, &ask.capacity, waiter)
            && executor.takes_images(&waiter.demand)
            && (!waiter.demand.avoid.contains(&ask.executor) || self.has_no_better_executor(waiter))
    }

    /// Whether only executors that failed the execution can run it, or it has waited long enough for others.
    fn has_no_better_executor(&self, waiter: &Waiter) -> bool {
        let better = |member: &&Member| {
            !waiter.demand.avoid.contains(&member.executor)
                && may_run(&member.executor, member.kind, &member.capacity, waiter)
        };
        self.now.since(waiter.demand.since_ms) > AVOID_TIME
            || !self.members.iter().any(|member| better(&member))
    }

    fn can_start(&self, waiter: &Waiter) -> bool {
        self.executors
            .iter()
            .any(|executor| executor.can_start(&waiter.demand) && self.eligible(executor, waiter))
    }

    fn is_warm_with_room(&self, waiter: &Waiter) -> bool {
        self.executors.iter().any(|executor| {
            waiter.warm_at.contains(&executor.ask.executor)
                && executor.can_start(&waiter.demand)
                && self.eligible(executor, waiter)
        })
    }

    /// The executor that gets the execution, and whether the execution has to wait there.
    fn find(&self, waiter: &Waiter) -> Option<(usize, bool)> {
        let demand = &waiter.demand;
        let open =
            || self.executors.iter().enumerate().filter(|(_, executor)| self.eligible(executor, waiter));
        let rank = |executor: &AskingExecutor<'_>| {
            let warm = waiter.warm_at.contains(&executor.ask.executor);
            let plain = Reverse(waiter.set.special(executor.ask.kind));
            ((executor.has_image(demand), warm, plain), 1.0 - executor.free.share_of(&executor.ask.capacity))
        };
        let better = |a: &(usize, &AskingExecutor<'_>), b: &(usize, &AskingExecutor<'_>)| {
            let ((suits_a, full_a), (suits_b, full_b)) = (rank(a.1), rank(b.1));
            suits_a.cmp(&suits_b).then(full_b.total_cmp(&full_a)).then(b.0.cmp(&a.0))
        };
        if let Some((index, _)) = open().filter(|(_, executor)| executor.can_start(demand)).max_by(better) {
            return Some((index, false));
        }
        let ahead = open().filter(|(_, executor)| executor.can_queue(demand));
        ahead
            .max_by_key(|(index, executor)| (executor.ahead, Reverse(*index)))
            .map(|(index, _)| (index, true))
    }

    fn assign(&mut self, ask: usize, waiter: &Waiter, ahead: bool) -> Resources {
        let Some(executor) = self.executors.get_mut(ask) else {
            impossible!("executor {ask} of {} was chosen", self.executors.len());
            return Resources::default();
        };
        let size = executor.size(&waiter.demand);
        if !executor.has_image(&waiter.demand) {
            executor.fetching = executor.fetching.saturating_add(1);
        }
        if ahead {
            executor.ahead -= 1;
        } else {
            executor.free.take(&size);
            executor.starts -= 1;
            executor.idle = false;
            if waiter.demand.exclusive {
                (executor.starts, executor.ahead) = (0, 0);
            }
        }
        size
    }

    /// Reserves room for an execution that no executor can start.
    fn reserve_room(&mut self, waiter: &'a Waiter) {
        let demand = &waiter.demand;
        let reserved_on = self.reserved_on(waiter);
        let patient = self.now.since(demand.since_ms) <= self.rules.custom_patience;
        for at in 0..self.executors.len() {
            let eligible = self.executors.get(at).is_some_and(|executor| self.eligible(executor, waiter));
            let Some(executor) = self.executors.get_mut(at).filter(|_| eligible) else { continue };
            let size = executor.size(demand);
            let waits_for_custom = !size.fits_custom(&executor.free);
            if waits_for_custom {
                // Later executions must not get the custom resource that it waits for.
                executor.free.take(&Resources { custom: size.custom.clone(), ..Resources::default() });
                let behind = size.custom.keys().any(|name| executor.reserved_custom.contains(name));
                if patient || behind {
                    continue;
                }
                executor.reserved_custom.extend(demand.size.custom.keys());
            } else if !reserved_on.contains(&executor.ask.executor) {
                continue;
            }
            executor.free.take(&Resources { custom: BTreeMap::new(), ..size });
            executor.reserved = true;
            if demand.exclusive {
                executor.starts = 0;
            }
        }
    }

    /// Executors on which room is reserved for the execution: one at first, more the longer it waits.
    fn reserved_on(&self, waiter: &Waiter) -> BTreeSet<ExecutorId> {
        let asking = self.executors.iter().map(|it| (&it.ask.executor, it.ask.kind, &it.ask.capacity));
        let members = self.members.iter().map(|it| (&it.executor, it.kind, &it.capacity));
        let able: BTreeSet<&ExecutorId> = members
            .chain(asking)
            .filter(|(executor, kind, capacity)| may_run(executor, *kind, capacity, waiter))
            .map(|(executor, ..)| executor)
            .collect();
        let name = waiter.key.to_string();
        let mut ranked: Vec<_> =
            able.into_iter().map(|executor| (rendezvous(&name, executor), executor)).collect();
        ranked.sort_unstable();
        let since = self.now.since(waiter.demand.since_ms);
        let many = usize::try_from(since.as_secs() / WIDEN_INTERVAL.as_secs())
            .unwrap_or(usize::MAX)
            .saturating_add(1);
        ranked.into_iter().take(many).map(|(_, executor)| executor.clone()).collect()
    }
}

/// Rank of an executor for an execution that has no other preference: all callers compute the same rank, and each
/// execution has another best executor (rendezvous hashing).
fn rendezvous(execution: &str, executor: &ExecutorId) -> u64 {
    Hasher::new("rendezvous").text(execution).text(executor.as_str()).key()
}

/// Whether `executor` of this kind may ever run the execution.
fn may_run(executor: &ExecutorId, kind: usize, capacity: &Resources, waiter: &Waiter) -> bool {
    waiter.set.contains(kind) && waiter.demand.asked().fits(capacity) && !waiter.holders.contains(executor)
}

#[cfg(test)]
mod tests;
