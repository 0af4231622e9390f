//! The dispatch loop: when something starts to wait or an executor has room again, it reads the waiting executions,
//! decides which executor gets which, commits and sends them. A timer handles what is due.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::Duration,
};

use index::{
    IndexError,
    actions::{GroupHead, Heads, PoolHead},
};
use invariant::{Present as _, impossible};
use model::{ExecutionKey, ExecutorId, ExecutorType, Millis, PoolName};
use policy::{
    Random,
    actions::{Ask, Queue, Standing, Waiter, grant},
};
use service::{ServiceError, Step, crash_point, sleep_until};
use telemetry::metrics::{Gauge, set};
use tokio::time::Instant;
use tracing::warn;

use crate::{
    Shared,
    grants::{self, Granted},
    view::OpenExecutor,
};

/// Maximum number of executions of a pool read in one shallow pass: somewhat more than can be granted,
/// since not all fit.
const HEAD_MAX: usize = 256;
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
    /// Whether the timer is due: all pools are read.
    due: bool,
}

/// What one round decided.
struct Round {
    heads: Heads,
    granted: Vec<Granted>,
    /// Number of executions in `granted`, by pool.
    counts: BTreeMap<PoolName, u64>,
    /// Number of the last known grant to each executor with room.
    after: HashMap<ExecutorId, u64>,
}

impl<'a> Pass<'a> {
    fn new(shared: &'a Shared, due: bool) -> Self {
        Self { shared, now: shared.context.bus.now(), due }
    }

    async fn run(&self) -> Result<PassOutcome, IndexError> {
        if self.due {
            self.shared.view.remove_expired();
        }
        for round in 1.. {
            let pools = self.pools();
            if pools.is_empty() && !self.due {
                // Nothing was read, so the timer remains set. What waits may expire soon.
                let pause = if self.shared.has_news() { CHECK } else { REPAIR };
                return Ok(PassOutcome { again: Some(Instant::now() + pause), crowded: false });
            }
            let Some(decided) = self.decide(&pools).await? else {
                self.shared.wakes.rebuild.notify_one();
                return Ok(PassOutcome { again: Some(Instant::now() + RETRY), crowded: false });
            };
            let Round { heads, granted, counts, after } = decided;
            let sent = self.commit(&granted, &after).await?;
            for head in &heads.pools {
                let news = pools.get(&head.pool).copied().unwrap_or_default();
                let of_pool = counts.get(&head.pool).copied().unwrap_or_default();
                let leave = if sent.all { of_pool } else { 0 };
                self.shared.note_quiet(&head.pool, head.waiting <= leave && heads.hold.is_none(), news);
            }
            if sent.all || round >= ROUNDS {
                let crowded = heads.waiting > sent.granted as u64;
                return Ok(PassOutcome { again: next_check(&heads, self.now), crowded });
            }
        }
        impossible!("a pass has no last round");
        Ok(PassOutcome { again: Some(Instant::now() + RETRY), crowded: false })
    }

    /// The pools to read, each with its news counter before the read: those in which something may wait
    /// and an executor has room.
    fn pools(&self) -> BTreeMap<PoolName, u64> {
        let view = &self.shared.view;
        let pools = if self.due { view.pools() } else { view.open_pools() };
        let counted = pools.into_iter().filter(|pool| self.due || !self.shared.is_quiet(pool));
        counted.map(|pool| (pool.clone(), self.shared.news_of(&pool))).collect()
    }

    /// Reads the heads of the queues and decides; `None` if the index must be rebuilt.
    async fn decide(&self, pools: &BTreeMap<PoolName, u64>) -> Result<Option<Round>, IndexError> {
        let mut depth = Depth::Shallow;
        loop {
            let heads = self.heads(pools, depth).await?;
            if !heads.ready {
                return Ok(None);
            }
            let (mut granted, mut counts, mut after) = (Vec::new(), BTreeMap::new(), HashMap::new());
            let mut hides = false;
            for head in &heads.pools {
                let (open, of_pool) = self.decide_pool(head);
                hides |= depth == Depth::Shallow && hides_something(head, &open, &of_pool);
                counts.insert(head.pool.clone(), of_pool.len() as u64);
                after.extend(open.into_iter().map(|it| (it.ask.executor, it.after)));
                granted.extend(of_pool);
            }
            if !hides {
                return Ok(Some(Round { heads, granted, counts, after }));
            }
            depth = Depth::Deep;
        }
    }

    async fn heads(&self, pools: &BTreeMap<PoolName, u64>, depth: Depth) -> Result<Heads, IndexError> {
        let pools: Vec<PoolName> = pools.keys().cloned().collect();
        let view = &self.shared.view;
        let most = match depth {
            _ if !pools.iter().any(|pool| view.has_room(pool)) => 0,
            Depth::Shallow => view.room(&pools).saturating_add(HEAD_MORE).min(HEAD_MAX),
            Depth::Deep => HEAD_DEEP,
        };
        let heads = self.shared.actions.heads(self.now, most, GRACE, &pools).await?;
        set(Gauge::ExecutionsWaiting, &[], i64::try_from(heads.waiting).unwrap_or(i64::MAX));
        let wakes = &self.shared.wakes;
        if heads.silent > 0 {
            wakes.ask.notify_one();
        }
        if heads.doubtful > 0 {
            // Some of the doubtful executions may have been requeued, in any pool.
            view.pools().iter().for_each(|pool| self.shared.news(pool));
        }
        if heads.next_overdue.is_some_and(|at| at <= self.now) {
            wakes.overdue.notify_one();
        }
        if heads.next_hedge.is_some_and(|at| at <= self.now) {
            wakes.hedge.notify_one();
        }
        Ok(heads)
    }

    /// Decides what the executors of a pool get.
    fn decide_pool(&self, head: &PoolHead) -> (Vec<OpenExecutor>, Vec<Granted>) {
        let kind = self.shared.view.executor_type(&head.pool);
        let queues: Vec<Queue> = head.groups.iter().map(|group| self.queue(group, kind.as_ref())).collect();
        if queues.iter().all(|queue| queue.waiting.is_empty()) {
            return (Vec::new(), Vec::new());
        }
        let view = &self.shared.view;
        let waiting: HashMap<&ExecutionKey, &Waiter> =
            queues.iter().flat_map(|queue| &queue.waiting).map(|waiter| (&waiter.key, waiter)).collect();
        let warm: BTreeSet<ExecutorId> =
            waiting.values().flat_map(|waiter| waiter.warm_at.iter().cloned()).collect();
        let mut random = Random::new(self.shared.next_seed());
        let open = view.open_executors(&head.pool, EXECUTORS_MAX, &warm, &mut random);
        let asks: Vec<Ask> = open.iter().map(|it| it.ask.clone()).collect();
        let members = view.members(&head.pool);
        let grants = grant(&queues, &asks, &members, self.shared.grants, self.now);
        let granted = grants.into_iter().filter_map(|grant| {
            let (Some(ask), Some(waiter)) = (asks.get(grant.ask), waiting.get(&grant.key)) else {
                let executors = asks.len();
                impossible!(
                    "the grant of {} to executor {} of {executors} has no such",
                    grant.key,
                    grant.ask
                );
                return None;
            };
            let (executor, demand) = (ask.executor.clone(), waiter.demand.clone());
            Some(Granted { executor, demand, grant })
        });
        let granted = granted.collect();
        (open, granted)
    }

    fn queue(&self, head: &GroupHead, kind: Option<&ExecutorType>) -> Queue {
        let weight = self.shared.weight(&head.group);
        let waiter = |waiting: &index::actions::Waiting| Waiter {
            key: waiting.key.clone(),
            demand: waiting.demand.clone(),
            holders: waiting.holders.clone(),
            warm_at: if self.shared.affinity { self.shared.view.warm_at(&waiting.key) } else { Vec::new() },
        };
        Queue {
            standing: Standing { used: head.used, held: head.held, weight },
            share: kind.and_then(|kind| self.shared.share(&head.group, kind)),
            waiting: head.waiting.iter().map(waiter).collect(),
        }
    }

    /// Commits the grants and sends them.
    async fn commit(
        &self,
        granted: &[Granted],
        after: &HashMap<ExecutorId, u64>,
    ) -> Result<grants::Sent, IndexError> {
        if granted.is_empty() {
            return Ok(grants::Sent { granted: 0, all: true });
        }
        crash_point(Step::ActionPicked);
        let commit = |it: &Granted| {
            let after = after.get(&it.executor).copied();
            it.to_commit(self.shared, after.present("the last grant to an executor with room"), self.now)
        };
        let commits: Vec<index::actions::Grant> = granted.iter().map(commit).collect();
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
fn hides_something(head: &PoolHead, open: &[OpenExecutor], granted: &[Granted]) -> bool {
    let read: usize = head.groups.iter().map(|group| group.waiting.len()).sum();
    // Emergencies are at the heads of queues, so they are read.
    if read == 0 || head.waiting <= read as u64 {
        return false;
    }
    let served: HashSet<&ExecutorId> = granted.iter().map(|it| &it.executor).collect();
    let got_nothing = |one: &OpenExecutor| {
        one.ask.starts > one.ask.kept.starts.into() && !served.contains(&one.ask.executor)
    };
    open.iter().any(got_nothing)
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
