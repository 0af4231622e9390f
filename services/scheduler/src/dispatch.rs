//! The dispatch loop: when executors ask for work, it reads the waiting executions, decides which executor
//! gets which, commits and answers. Between requests it handles what is due, and wakes executors that have
//! room while something waits.

use std::{collections::BTreeMap, time::Duration};

use index::{
    IndexError,
    actions::{Committed, Grant, Heads, PoolHead},
};
use invariant::{Present as _, impossible};
use model::{ExecutionKey, ExecutorId, Millis, PoolName};
use policy::actions::{self, Ask, Queue, Standing, Waiter, grant};
use service::{ServiceError, Step, crash_point, sleep_until};
use telemetry::metrics::{Gauge, set};
use tokio::{sync::mpsc::UnboundedReceiver, time::Instant};
use tracing::warn;

use crate::{
    Shared,
    answer::{self, Granted},
    claim_messages::Pending,
    reserve,
};

/// Maximum number of executions of a pool read in one shallow pass: somewhat more than can be granted,
/// since not all fit.
const HEAD_MAX: usize = 256;
const HEAD_MORE: usize = 32;
/// Number read in a deep pass, when a shallow one found nothing for an executor: many may wait for resources
/// that are in use.
const HEAD_DEEP: usize = 1024;
/// Maximum number of reservations checked in one pass.
const RESERVED_MAX: usize = 1024;
/// How long an executor that does not name an execution which it should have may take to confirm it.
const GRACE: Duration = Duration::from_millis(500);
/// Interval of the repair for lost wake-ups; it runs only while something waits or is claimed.
const REPAIR: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(100);
/// Minimum time between two passes while more waits than there is room for, so that one pass answers several requests.
const APART: Duration = Duration::from_millis(1);
/// Maximum number of rounds for requests whose grants another scheduler committed first.
const ROUNDS: usize = 3;

/// Dispatches until the service stops.
pub(crate) async fn run(shared: Shared, mut pending: UnboundedReceiver<Pending>) -> Result<(), ServiceError> {
    let mut timer: Option<Instant> = None;
    let mut next_pass = Instant::now();
    let mut failing = false;
    loop {
        let mut asked = Vec::new();
        tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            some = pending.recv() => asked.extend(some),
            () = shared.wakes.dispatch.notified() => timer = Some(Instant::now() + reserve::CHECK).into_iter().chain(timer).min(),
            () = sleep_until(timer) => {}
        }
        if asked.is_empty() && timer.is_none_or(|at| at > Instant::now()) {
            continue;
        }
        tokio::time::sleep_until(next_pass).await;
        let due = timer.is_some_and(|at| at <= Instant::now());
        while let Ok(more) = pending.try_recv() {
            asked.push(more);
        }
        let begun = Instant::now();
        match Pass::new(&shared, due).run(asked).await {
            Ok(PassOutcome { again, crowded }) => {
                failing = false;
                next_pass = if crowded { begun + APART } else { begun };
                // If the timer was not due in this pass, it remains set.
                timer = again.into_iter().chain(timer.filter(|_| !due)).min();
            }
            Err(error) => {
                // Log once per outage of Redis. The executors ask again.
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
    /// Whether the timer is due: all pools are read, and executors with room are woken.
    due: bool,
}

impl<'a> Pass<'a> {
    fn new(shared: &'a Shared, due: bool) -> Self {
        Self { shared, now: shared.context.bus.now(), due }
    }

    async fn run(&self, asked: Vec<Pending>) -> Result<PassOutcome, IndexError> {
        let mut open = self.answer_quiet_pools(asked).await;
        if !self.due && open.is_empty() {
            // Nothing was read, so the timer remains set.
            let again = Some(Instant::now() + REPAIR);
            return Ok(PassOutcome { again, crowded: false });
        }
        let mut depth = Depth::Shallow;
        let mut round = 0;
        loop {
            round += 1;
            let pools: BTreeMap<PoolName, u64> = self.pools(&open);
            let heads = self.heads(&open, &pools, depth).await?;
            if !heads.ready {
                self.shared.wakes.rebuild.notify_one();
                answer::nothing(self.shared, open, &heads).await;
                return Ok(PassOutcome { again: Some(Instant::now() + RETRY), crowded: false });
            }
            let granted = self.decide(&heads.pools, &open);
            if depth == Depth::Shallow && hides_something(&heads, &granted, &open) {
                depth = Depth::Deep;
                continue;
            }
            let grants: Vec<Grant> = granted.iter().map(|it| self.grant(it, &open)).collect();
            let (committed, all) = self.commit(&grants).await?;
            for head in &heads.pools {
                let news = pools.get(&head.pool).copied().unwrap_or_default();
                let pool_of = |grant: usize| granted.get(grant).and_then(|it| open.get(it.ask));
                let is_ours =
                    |it: &&Committed| pool_of(it.grant).is_some_and(|of| of.request.pool == head.pool);
                let taken = committed.iter().filter(is_ours).count() as u64;
                self.shared.note_quiet(&head.pool, head.waiting <= taken && heads.hold.is_none(), news);
            }
            answer::answer(self.shared, &mut open, &granted, committed, &heads, all || round == ROUNDS).await;
            if open.is_empty() {
                let taken = granted.len() as u64;
                if self.due {
                    self.wake(&heads).await;
                }
                return Ok(PassOutcome {
                    again: next_check(&heads, self.now),
                    crowded: heads.waiting > taken,
                });
            }
        }
    }

    /// Answers the requests that cannot be granted, without a read of the index: nothing waited in their pool at the
    /// last read, and no news came since.
    async fn answer_quiet_pools(&self, asked: Vec<Pending>) -> Vec<Pending> {
        let (quiet, open): (Vec<Pending>, Vec<Pending>) =
            asked.into_iter().filter(|pending| !pending.is_late()).partition(|pending| {
                let request = &pending.request;
                self.shared.is_quiet(&request.pool) && self.shared.view.all_claimed(&request.reserved)
            });
        for pending in quiet {
            answer::empty(pending).await;
        }
        open
    }

    /// The pools to read, each with its news counter before the read.
    fn pools(&self, open: &[Pending]) -> BTreeMap<PoolName, u64> {
        let asked = open.iter().map(|pending| pending.request.pool.clone());
        let all = if self.due { self.shared.view.pools() } else { Vec::new() };
        asked.chain(all).map(|pool| (pool.clone(), self.shared.news_of(&pool))).collect()
    }

    async fn heads(
        &self,
        open: &[Pending],
        pools: &BTreeMap<PoolName, u64>,
        depth: Depth,
    ) -> Result<Heads, IndexError> {
        let pools: Vec<PoolName> = pools.keys().cloned().collect();
        let reserved: Vec<ExecutionKey> = open
            .iter()
            .flat_map(|pending| pending.request.reserved.iter().cloned())
            .take(RESERVED_MAX)
            .collect();
        let room: usize =
            open.iter().map(|it| usize::from(it.request.starts) + usize::from(it.request.ahead)).sum();
        let most = match depth {
            Depth::Shallow => room.saturating_add(HEAD_MORE).min(HEAD_MAX),
            Depth::Deep => HEAD_DEEP,
        };
        let heads = self.shared.actions.heads(self.now, most, GRACE, &pools, &reserved).await?;
        set(Gauge::ExecutionsWaiting, &[], i64::try_from(heads.waiting).unwrap_or(i64::MAX));
        let wakes = &self.shared.wakes;
        if heads.silent > 0 {
            wakes.ask.notify_one();
        }
        if heads.doubtful > 0 {
            // Some of the doubtful executions may have been requeued, in any pool.
            self.shared.view.pools().iter().for_each(|pool| self.shared.news(pool));
        }
        if heads.next_overdue.is_some_and(|at| at <= self.now) {
            wakes.overdue.notify_one();
        }
        if heads.next_hedge.is_some_and(|at| at <= self.now) {
            wakes.hedge.notify_one();
        }
        Ok(heads)
    }

    /// Decides from the facts alone, without I/O.
    fn decide(&self, pools: &[PoolHead], open: &[Pending]) -> Vec<Granted> {
        let mut granted = Vec::new();
        for head in pools {
            let of_pool: Vec<(usize, &Pending)> =
                open.iter().enumerate().filter(|(_, it)| it.request.pool == head.pool).collect();
            let asks: Vec<Ask> = of_pool.iter().map(|(_, pending)| ask(pending)).collect();
            let queues: Vec<Queue> = head.groups.iter().map(|group| self.queue(group)).collect();
            let members = self.shared.view.members(&head.pool);
            let grants = grant(&queues, &asks, &members, self.shared.grants, self.now);
            let waiting: std::collections::HashMap<&ExecutionKey, &Waiter> =
                queues.iter().flat_map(|queue| &queue.waiting).map(|waiter| (&waiter.key, waiter)).collect();
            for it in grants {
                let (Some((ask, _)), Some(waiter)) = (of_pool.get(it.ask), waiting.get(&it.key)) else {
                    let requests = of_pool.len();
                    impossible!(
                        "the grant of {} to request {} of {requests} has no request or no waiting execution",
                        it.key,
                        it.ask
                    );
                    continue;
                };
                granted.push(Granted { ask: *ask, demand: waiter.demand.clone(), grant: it });
            }
        }
        granted
    }

    fn queue(&self, head: &index::actions::GroupHead) -> Queue {
        let weight = self.shared.weight(&head.group);
        let waiter = |waiting: &index::actions::Waiting| {
            let warm = self.shared.view.warm(&waiting.key, &waiting.demand.size);
            Waiter {
                key: waiting.key.clone(),
                demand: waiting.demand.clone(),
                holders: waiting.holders.clone(),
                warm_at: warm.at,
                for_warm: warm.first,
            }
        };
        Queue {
            standing: Standing { used: head.used, held: head.held, weight },
            waiting: head.waiting.iter().map(waiter).collect(),
        }
    }

    fn grant(&self, granted: &Granted, open: &[Pending]) -> Grant {
        let demand = &granted.demand;
        let hedge_at = self.shared.hedge_at(demand, self.now);
        let cost = actions::occupancy(&granted.grant.size).micros() / 1000;
        Grant {
            key: granted.grant.key.clone(),
            executor: executor(open, granted.ask),
            hedge_at,
            cost: u64::try_from(cost).present("the occupancy of an execution, which is not negative"),
        }
    }

    /// Commits the grants. Returns those that succeeded, and whether all did.
    async fn commit(&self, grants: &[Grant]) -> Result<(Vec<Committed>, bool), IndexError> {
        if grants.is_empty() {
            return Ok((Vec::new(), true));
        }
        crash_point(Step::ActionPicked);
        let committed = self.shared.actions.commit(grants, self.now).await?;
        crash_point(Step::ActionCommitted);
        let all = committed.len() == grants.len();
        Ok((committed, all))
    }

    /// Wakes executors that have room for waiting executions.
    async fn wake(&self, heads: &Heads) {
        for head in &heads.pools {
            let waiting: Vec<_> = head.groups.iter().flat_map(|group| &group.waiting).collect();
            let idle = self.shared.view.with_room(&head.pool, &waiting);
            reserve::wake_executors(self.shared, idle, usize::try_from(head.waiting).unwrap_or(usize::MAX))
                .await;
        }
    }
}

/// How far into the queues a pass reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    Shallow,
    Deep,
}

/// Whether an executor with room got nothing although executions behind the ones read may suit it.
fn hides_something(heads: &Heads, granted: &[Granted], open: &[Pending]) -> bool {
    let has_room =
        |at: usize, pending: &Pending| pending.request.starts > 0 && !granted.iter().any(|it| it.ask == at);
    open.iter().enumerate().any(|(at, pending)| {
        let cut = heads.pools.iter().any(|head| {
            let read: usize = head.groups.iter().map(|group| group.waiting.len()).sum();
            head.pool == pending.request.pool && head.waiting > read as u64
        });
        cut && has_room(at, pending)
    })
}

fn executor(open: &[Pending], at: usize) -> ExecutorId {
    // The index was made from this list of requests.
    #[expect(clippy::indexing_slicing, reason = "see above")]
    open[at].request.executor.clone()
}

fn ask(pending: &Pending) -> Ask {
    let request = &pending.request;
    Ask {
        executor: request.executor.clone(),
        capacity: request.capacity.clone(),
        free: request.free.clone(),
        starts: request.starts.into(),
        ahead: request.ahead.into(),
        idle: request.idle,
    }
}

/// When the next pass runs if nothing wakes the loop: at the next due time, and after [`REPAIR`] while a lost wake-up
/// could leave something waiting or claimed.
fn next_check(heads: &Heads, now: Millis) -> Option<Instant> {
    let instant_of = |due: Millis| Instant::now() + due.since(now);
    let pending = heads.waiting + heads.claimed > 0;
    let later = |due: &Millis| *due > now;
    let due = heads.next_doubt.into_iter().chain(heads.hold);
    let due = due.chain(heads.next_overdue.filter(later)).chain(heads.next_hedge.filter(later));
    due.map(instant_of).chain(pending.then(|| Instant::now() + REPAIR)).min()
}
