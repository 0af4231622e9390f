//! The dispatch loop: when something starts to wait or an executor has room again, it reads the waiting executions,
//! decides which executor gets which, commits and sends them. A timer handles what is due.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use index::{
    IndexError,
    actions::{GroupUse, Heads, QueueHead},
};
use invariant::impossible;
use model::{ExecutionKey, ExecutorId, Group, Millis, PoolName, RequirementsId, WaitAgain};
use policy::{
    Random,
    actions::{Ask, ProcessingSet, Queue, Standing, Waiter, grant, independent},
};
use service::{ServiceError, Step, crash_point, sleep_until};
use telemetry::metrics::{Gauge, set};
use tokio::time::Instant;
use tracing::warn;

use crate::{
    Shared,
    grants::{self, Granted},
    messages,
    queues::ToRead,
    view::{KnownKinds, OpenExecutor},
};

/// Maximum number of executions of a queue read in one shallow pass: somewhat more than can be granted,
/// since not all fit.
const HEAD_MAX: usize = 256;
/// Maximum number of executions read in one pass, unless there are more queues than that allows [`QUEUE_LEAST`] for each.
const QUEUES_TOTAL: usize = 4096;
/// Minimum number of executions of a queue read in one pass that may grant.
const QUEUE_LEAST: usize = 8;
const HEAD_MORE: usize = 32;
/// Number read in a deep pass, when a shallow one found nothing for an executor: many may wait for resources
/// that are in use.
const HEAD_DEEP: usize = 1024;
/// Maximum number of executors with room that one pass compares, besides those where a waiting execution is warm.
const EXECUTORS_MAX: usize = 256;
/// How long an executor that does not name an execution which it should have may take to confirm it.
const GRACE: Duration = Duration::from_millis(500);
/// Interval of the repair for lost messages; it runs only while something waits or is claimed.
const REPAIR: Duration = Duration::from_secs(1);
/// Time after which a scheduler grants what waits although another one applied its record: that one may be gone. Also the
/// time until it reads when something expires that cannot be granted.
const CHECK: Duration = Duration::from_millis(50);
const RETRY: Duration = Duration::from_millis(100);
/// Minimum time between two passes while more waits than there is room for, so that one pass fills several rooms.
const APART: Duration = Duration::from_millis(1);
/// Maximum number of rounds of a pass after grants of another scheduler that came first.
const ROUNDS: usize = 3;

/// Dispatches until the service stops.
pub(crate) async fn run(shared: Shared) -> Result<(), ServiceError> {
    let mut timer: Option<Instant> = None;
    let mut next_pass = Instant::now();
    let mut failing = false;
    let mut reconnects = shared.context.bus.reconnects();
    let earlier = |timer: Option<Instant>, at: Instant| Some(timer.map_or(at, |timer| timer.min(at)));
    loop {
        tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            () = shared.wakes.dispatch.notified() => {}
            () = reconnects.next() => {
                shared.view.messages_lost();
                continue;
            }
            () = shared.wakes.check.notified() => {
                timer = earlier(timer, Instant::now() + CHECK);
                continue;
            }
            () = sleep_until(timer) => {}
        }
        tokio::time::sleep_until(next_pass).await;
        let due = timer.is_some_and(|at| at <= Instant::now());
        let begun = Instant::now();
        let _granting = shared.granting.lock().await;
        match Pass::new(&shared, due).run().await {
            Ok(PassOutcome { again, crowded }) => {
                failing = false;
                next_pass = if crowded { begun + APART } else { begun };
                // If the timer was not due in this pass, it remains set.
                timer = again.into_iter().chain(timer.filter(|_| !due)).min();
            }
            Err(error) => {
                // Log once per outage of Redis.
                if !failing {
                    warn!(
                        error = telemetry::error_chain(&error),
                        "waiting for Redis; dispatch resumes when it answers"
                    );
                }
                failing = true;
                timer = Some(Instant::now() + RETRY);
            }
        }
    }
}

/// Result of a pass.
struct PassOutcome {
    /// When the next pass runs if nothing wakes the loop.
    again: Option<Instant>,
    /// Whether more executions wait than there was room for.
    crowded: bool,
}

struct Pass<'a> {
    shared: &'a Shared,
    now: Millis,
    /// Whether the timer is due: all queues are read.
    due: bool,
    /// The kinds of executors at its start.
    kinds: KnownKinds,
}

/// What one round decided.
struct Round {
    heads: Heads,
    granted: Vec<Granted>,
    /// Number of executions in `granted`, by queue.
    counts: HashMap<RequirementsId, u64>,
}

/// What was decided about queues that no other queue shares executors with.
struct Part {
    open: Vec<OpenExecutor>,
    granted: Vec<Granted>,
    /// The queue of each execution in `granted`: an index into the queues that were read.
    queues: Vec<usize>,
}

impl<'a> Pass<'a> {
    fn new(shared: &'a Shared, due: bool) -> Self {
        Self { shared, now: shared.context.bus.now(), due, kinds: shared.view.kinds() }
    }

    async fn run(&self) -> Result<PassOutcome, IndexError> {
        if self.due {
            self.shared.view.remove_expired();
        }
        self.learn_queues().await?;
        for round in 1.. {
            let queues = self.queues();
            if queues.is_empty() && !self.due {
                // Nothing was read, so the timer remains set. What waits may expire soon.
                let pause = if self.shared.queues.any_active() { CHECK } else { REPAIR };
                return Ok(PassOutcome { again: Some(Instant::now() + pause), crowded: false });
            }
            let Some(decided) = self.decide(&queues).await? else {
                self.shared.wakes.rebuild.notify_one();
                return Ok(PassOutcome { again: Some(Instant::now() + RETRY), crowded: false });
            };
            let Round { heads, granted, counts } = decided;
            if self.due && heads.hold.is_none() {
                self.find_unknown(&heads);
            }
            let sent = self.commit(&granted).await?;
            for head in heads.queues.iter().filter(|_| heads.hold.is_none()) {
                let of_queue = counts.get(&head.requirements).copied().unwrap_or_default();
                let leave = if sent.all { of_queue } else { 0 };
                if head.waiting <= leave
                    && let Some(read) = queues.iter().find(|read| read.id == head.requirements)
                {
                    self.shared.queues.note_empty(&read.id, read.news);
                }
            }
            if sent.all || round >= ROUNDS {
                let crowded = heads.waiting > sent.granted as u64;
                return Ok(PassOutcome { again: next_check(&heads, self.now), crowded });
            }
        }
        impossible!("a pass has no last round");
        Ok(PassOutcome { again: Some(Instant::now() + RETRY), crowded: false })
    }

    /// Reads which queues there are, if some may be unknown.
    async fn learn_queues(&self) -> Result<(), IndexError> {
        let queues = &self.shared.queues;
        if !queues.take_incomplete() {
            return Ok(());
        }
        let backlog = self.shared.actions.backlog().await.inspect_err(|_| queues.set_incomplete())?;
        for it in &backlog {
            queues.news(&it.requirements);
        }
        Ok(())
    }

    /// Looks whether more waits than in all known queues: a message about it was lost.
    fn find_unknown(&self, heads: &Heads) {
        let known: u64 = heads.queues.iter().map(|queue| queue.waiting).sum();
        if heads.waiting > known {
            self.shared.queues.set_incomplete();
            self.shared.wakes.dispatch.notify_one();
        }
    }

    /// The queues to read: those in which something may wait and an able executor has room.
    fn queues(&self) -> Vec<ToRead> {
        let open = (!self.due).then(|| self.shared.view.open_kinds());
        self.shared.queues.to_read(open.as_ref(), &self.kinds)
    }

    /// Reads the heads of the queues and decides; `None` if the index must be rebuilt.
    async fn decide(&self, queues: &[ToRead]) -> Result<Option<Round>, IndexError> {
        let mut depth = Depth::Shallow;
        let sets: Vec<&ProcessingSet> = queues.iter().map(|queue| &*queue.set).collect();
        let parts = independent(&sets);
        loop {
            let heads = self.heads(queues, depth).await?;
            if !heads.ready {
                return Ok(None);
            }
            let (mut granted, mut counts) = (Vec::new(), HashMap::new());
            let mut hides = false;
            for members in &parts {
                let read: Vec<(&QueueHead, &ToRead)> = members
                    .iter()
                    .filter_map(|at| Some((heads.queues.get(*at)?, queues.get(*at)?)))
                    .collect();
                let part = self.decide_part(&read, &heads.uses);
                hides |= depth == Depth::Shallow && hides_something(&read, &part);
                for (head, _) in part.queues.iter().filter_map(|at| read.get(*at)) {
                    *counts.entry(head.requirements.clone()).or_default() += 1;
                }
                granted.extend(part.granted);
            }
            if !hides {
                return Ok(Some(Round { heads, granted, counts }));
            }
            depth = Depth::Deep;
        }
    }

    async fn heads(&self, queues: &[ToRead], depth: Depth) -> Result<Heads, IndexError> {
        let view = &self.shared.view;
        let kinds: BTreeSet<usize> = queues.iter().flat_map(|queue| queue.set.kinds()).collect();
        let most = match depth {
            _ if !view.has_room(&kinds) => 0,
            Depth::Shallow => view.room(&kinds, HEAD_MAX).saturating_add(HEAD_MORE).min(HEAD_MAX),
            Depth::Deep => HEAD_DEEP,
        };
        // Many queues together are read as far as a few.
        let most = most.min((QUEUES_TOTAL / queues.len().max(1)).max(QUEUE_LEAST));
        let pools: BTreeSet<&PoolName> =
            kinds.iter().filter_map(|kind| Some(&self.kinds.offers.get(*kind)?.name)).collect();
        let pools: Vec<PoolName> = pools.into_iter().cloned().collect();
        let ids: Vec<RequirementsId> = queues.iter().map(|queue| queue.id.clone()).collect();
        let heads = self.shared.actions.heads(self.now, most, GRACE, &ids, &pools).await?;
        set(Gauge::ExecutionsWaiting, &[], i64::try_from(heads.waiting).unwrap_or(i64::MAX));
        let wakes = &self.shared.wakes;
        if heads.silent > 0 {
            wakes.ask.notify_one();
        }
        messages::announce_requeued(self.shared, WaitAgain { requirements: heads.again.clone() }).await;
        if heads.next_overdue.is_some_and(|at| at <= self.now) {
            wakes.overdue.notify_one();
        }
        if heads.next_hedge.is_some_and(|at| at <= self.now) {
            wakes.hedge.notify_one();
        }
        Ok(heads)
    }

    /// Decides what the executors get that can run the executions of these queues.
    fn decide_part(
        &self,
        read: &[(&QueueHead, &ToRead)],
        group_uses: &HashMap<PoolName, Vec<GroupUse>>,
    ) -> Part {
        let kinds: BTreeSet<usize> = read.iter().flat_map(|(_, queue)| queue.set.kinds()).collect();
        let queues = self.group_queues(read, &kinds, group_uses);
        if queues.iter().all(|queue| queue.waiting.is_empty()) {
            return Part { open: Vec::new(), granted: Vec::new(), queues: Vec::new() };
        }
        let view = &self.shared.view;
        let waiting: HashMap<&ExecutionKey, &Waiter> =
            queues.iter().flat_map(|queue| &queue.waiting).map(|waiter| (&waiter.key, waiter)).collect();
        let warm: BTreeSet<ExecutorId> =
            waiting.values().flat_map(|waiter| waiter.warm_at.iter().cloned()).collect();
        let mut random = Random::new(self.shared.next_seed());
        let open = view.open_executors(&kinds, EXECUTORS_MAX, &warm, &mut random);
        let asks: Vec<Ask> = open.iter().map(|it| it.ask.clone()).collect();
        let members = || view.members(&kinds);
        let grants = grant(&queues, &asks, &members, self.shared.grants, self.now);
        let (mut granted, mut of_queues) = (Vec::new(), Vec::new());
        for grant in grants {
            let (Some(to), Some(waiter)) = (open.get(grant.ask), waiting.get(&grant.key)) else {
                let executors = asks.len();
                impossible!(
                    "the grant of {} to executor {} of {executors} has no such",
                    grant.key,
                    grant.ask
                );
                continue;
            };
            of_queues.extend(read.iter().position(|(_, queue)| Arc::ptr_eq(&queue.set, &waiter.set)));
            granted.push(Granted::new(to, waiter.demand.clone(), grant));
        }
        Part { open, granted, queues: of_queues }
    }

    /// The queue of each group: its executions of all of `read`, in one order.
    fn group_queues(
        &self,
        read: &[(&QueueHead, &ToRead)],
        kinds: &BTreeSet<usize>,
        group_uses: &HashMap<PoolName, Vec<GroupUse>>,
    ) -> Vec<Queue> {
        let offers = || kinds.iter().filter_map(|kind| self.kinds.offers.get(*kind));
        let pools: BTreeSet<&PoolName> = offers().map(|offer| &offer.name).collect();
        let mut standings: HashMap<&Group, (f64, f64)> = HashMap::new();
        for it in pools.into_iter().filter_map(|pool| group_uses.get(pool)).flatten() {
            let (used, held) = standings.entry(&it.group).or_default();
            *used += it.used;
            *held += it.held;
        }
        let mut groups: BTreeMap<&Group, Vec<(u64, Waiter)>> = BTreeMap::new();
        for (head, queue) in read {
            for (group, waiting) in &head.groups {
                let of_group = groups.entry(group).or_default();
                of_group.extend(waiting.iter().map(|it| (it.score, self.waiter(it, &queue.set))));
            }
        }
        let queue = |(group, mut waiting): (&Group, Vec<(u64, Waiter)>)| {
            // Each queue is in this order; the sort merges them.
            waiting.sort_by_key(|(score, _)| *score);
            let (used, held) = standings.get(group).copied().unwrap_or_default();
            Queue {
                standing: Standing { used, held, weight: self.shared.weight(group) },
                share: self.shared.share(group, offers()),
                waiting: waiting.into_iter().map(|(_, waiter)| waiter).collect(),
            }
        };
        groups.into_iter().map(queue).collect()
    }

    fn waiter(&self, waiting: &index::actions::Waiting, set: &Arc<ProcessingSet>) -> Waiter {
        let warm_at = if self.shared.affinity { self.shared.view.warm_at(&waiting.key) } else { Vec::new() };
        let (key, demand) = (waiting.key.clone(), waiting.demand.clone());
        Waiter { key, demand, holders: waiting.holders.clone(), warm_at, set: Arc::clone(set) }
    }

    /// Commits the grants and sends them.
    async fn commit(&self, granted: &[Granted]) -> Result<grants::Sent, IndexError> {
        if granted.is_empty() {
            return Ok(grants::Sent { granted: 0, all: true });
        }
        crash_point(Step::ActionPicked);
        let commits: Vec<index::actions::Grant> =
            granted.iter().map(|it| it.to_commit(self.shared, self.now)).collect();
        let committed = self.shared.actions.commit(&commits, self.now).await?;
        crash_point(Step::ActionCommitted);
        Ok(grants::send(self.shared, granted, committed).await)
    }
}

/// How far into the queues a pass reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    Shallow,
    Deep,
}

/// Whether an executor with room got nothing although executions behind the ones read may suit it.
fn hides_something(read: &[(&QueueHead, &ToRead)], part: &Part) -> bool {
    let shown = |head: &QueueHead| head.groups.iter().map(|(_, waiting)| waiting.len() as u64).sum::<u64>();
    // Emergencies are at the heads of queues, so they are read.
    let hiding: Vec<&ToRead> = read
        .iter()
        .filter(|(head, _)| (1..head.waiting).contains(&shown(head)))
        .map(|(_, queue)| *queue)
        .collect();
    let served: HashSet<&ExecutorId> = part.granted.iter().map(|it| &it.executor).collect();
    let got_nothing = |one: &OpenExecutor| {
        one.ask.starts > one.ask.kept.starts.into() && !served.contains(&one.ask.executor)
    };
    let able = |one: &OpenExecutor| hiding.iter().any(|queue| queue.set.contains(one.ask.kind));
    !hiding.is_empty() && part.open.iter().any(|one| got_nothing(one) && able(one))
}

/// When the next pass runs if nothing wakes the loop: at the next due time, and after [`REPAIR`] while a lost message
/// could leave something waiting or claimed.
fn next_check(heads: &Heads, now: Millis) -> Option<Instant> {
    let instant_of = |due: Millis| Instant::now() + due.since(now);
    let pending = heads.waiting + heads.claimed > 0;
    let later = |due: &Millis| *due > now;
    let due = heads.next_doubt.into_iter().chain(heads.hold);
    let due = due.chain(heads.next_overdue.filter(later)).chain(heads.next_hedge.filter(later));
    due.map(instant_of).chain(pending.then(|| Instant::now() + REPAIR)).min()
}
