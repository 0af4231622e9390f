//! The loop: executors ask for work; it reads what waits, decides who gets what, commits and answers. Between asks it looks
//! after what is due, and wakes executors that have room while something waits.

use std::{collections::BTreeMap, time::Duration};

use index::{
    IndexError,
    actions::{Committed, Grant, Heads, PoolHead},
};
use model::{ExecutionKey, ExecutorId, Millis, PoolName};
use policy::actions::{self, Ask, Queue, Standing, Waiter, grant};
use service::{ServiceError, Step, crash_point};
use telemetry::metrics::{Gauge, set};
use tokio::{sync::mpsc::UnboundedReceiver, time::Instant};
use tracing::warn;

use crate::{
    Shared,
    answer::{self, Granted},
    claims::Pending,
    reserve,
};

/// Executions of a pool looked at in one pass: more than can be granted, since not all fit, but not many more.
const HEAD_MAX: usize = 256;
const HEAD_MORE: usize = 32;
/// Looked at when there is nothing for someone among these: many may wait for what is not free.
const HEAD_DEEP: usize = 1024;
/// Reservations of which it is looked in one pass whether they still stand.
const RESERVED_MAX: usize = 1024;
/// How long an executor that does not name what it should have may take to say whether it has it.
const GRACE: Duration = Duration::from_millis(500);
/// The repair path for a lost wake-up; runs only while something waits or is claimed.
const REPAIR: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(100);
/// From one pass to the next at least while more waits than there is room for: a pass then answers several.
const APART: Duration = Duration::from_millis(1);
/// Passes at once for those whose grants were taken by another scheduler.
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
            Ok(Passed { again, crowded }) => {
                failing = false;
                next_pass = if crowded { begun + APART } else { begun };
                // What was due before is due still.
                timer = again.into_iter().chain(timer.filter(|_| !due)).min();
            }
            Err(error) => {
                // Once for a Redis that is away, however long. Those who asked ask again.
                if !failing {
                    warn!(
                        error = telemetry::error_chain(&error),
                        "work is given out again as soon as redis answers"
                    );
                }
                failing = true;
                timer = Some(Instant::now() + RETRY);
            }
        }
    }
}

async fn sleep_until(timer: Option<Instant>) {
    match timer {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// What a pass leaves.
struct Passed {
    /// When to look again if nothing wakes us.
    again: Option<Instant>,
    /// More waits than there was room for.
    crowded: bool,
}

struct Pass<'a> {
    shared: &'a Shared,
    now: Millis,
    /// Whether it is time to look at all pools, and to wake who has room.
    due: bool,
}

impl<'a> Pass<'a> {
    fn new(shared: &'a Shared, due: bool) -> Self {
        Self { shared, now: shared.context.bus.now(), due }
    }

    async fn run(&self, asked: Vec<Pending>) -> Result<Passed, IndexError> {
        let mut open = self.answer_the_quiet(asked).await;
        if !self.due && open.is_empty() {
            // Nothing was read: what was due before is due still.
            let again = Some(Instant::now() + REPAIR);
            return Ok(Passed { again, crowded: false });
        }
        let mut depth = Depth::Shallow;
        let mut round = 0;
        loop {
            round += 1;
            let pools: BTreeMap<PoolName, u64> = self.pools(&open);
            let heads = self.heads(&open, &pools, depth).await?;
            if !heads.ready {
                self.shared.wakes.rebuild.notify_one();
                answer::nothing(self.shared, &open, &heads).await;
                return Ok(Passed { again: Some(Instant::now() + RETRY), crowded: false });
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
                return Ok(Passed { again: next_look(&heads, self.now), crowded: heads.waiting > taken });
            }
        }
    }

    /// Answers those at once for whom nothing can wait: nothing waited in their pool, and nothing came since.
    async fn answer_the_quiet(&self, asked: Vec<Pending>) -> Vec<Pending> {
        let (quiet, open): (Vec<Pending>, Vec<Pending>) =
            asked.into_iter().filter(|pending| !pending.is_late()).partition(|pending| {
                let request = &pending.request;
                self.shared.is_quiet(&request.pool) && self.shared.view.all_claimed(&request.reserved)
            });
        for pending in quiet {
            answer::empty(self.shared, &pending).await;
        }
        open
    }

    /// The pools to look at, with how often something was heard of each before.
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
            // Some of them may have been given back, in any pool.
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

    /// Facts in, decision out.
    fn decide(&self, pools: &[PoolHead], open: &[Pending]) -> Vec<Granted> {
        let mut granted = Vec::new();
        for head in pools {
            let of_pool: Vec<usize> = (0..open.len())
                .filter(|at| open.get(*at).is_some_and(|it| it.request.pool == head.pool))
                .collect();
            let asks: Vec<Ask> = of_pool.iter().filter_map(|at| open.get(*at)).map(ask).collect();
            let queues: Vec<Queue> = head.groups.iter().map(|group| self.queue(group)).collect();
            let members = self.shared.view.members(&head.pool);
            let grants = grant(&queues, &asks, &members, self.shared.grants, self.now);
            let waiting: std::collections::HashMap<&ExecutionKey, &Waiter> =
                queues.iter().flat_map(|queue| &queue.waiting).map(|waiter| (&waiter.key, waiter)).collect();
            for it in grants {
                let (Some(ask), Some(waiter)) = (of_pool.get(it.ask), waiting.get(&it.key)) else { continue };
                granted.push(Granted { ask: *ask, demand: waiter.demand.clone(), grant: it });
            }
        }
        granted
    }

    fn queue(&self, head: &index::actions::GroupHead) -> Queue {
        let weight = self.shared.weight(&head.group);
        let one = |waiting: &index::actions::Waiting| {
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
            waiting: head.waiting.iter().map(one).collect(),
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
            cost: u64::try_from(cost).unwrap_or_default(),
        }
    }

    /// What held, and whether all did.
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

    /// Wakes executors that have room for what waits.
    async fn wake(&self, heads: &Heads) {
        for head in &heads.pools {
            let waiting: Vec<_> = head.groups.iter().flat_map(|group| &group.waiting).collect();
            let idle = self.shared.view.with_room(&head.pool, &waiting);
            reserve::nudge(self.shared, idle, usize::try_from(head.waiting).unwrap_or(usize::MAX)).await;
        }
    }
}

/// How far into the queues a pass looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    Shallow,
    Deep,
}

/// Whether what waits behind what was read may be for someone who has room and got nothing.
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
    // The index comes from these very requests.
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

/// When to look again if nothing wakes us: at the next time that something is due, and once a while as long as there is
/// anything that a lost wake-up could leave lying.
fn next_look(heads: &Heads, now: Millis) -> Option<Instant> {
    let at = |due: Millis| Instant::now() + due.since(now);
    let pending = heads.waiting + heads.claimed > 0;
    let later = |due: &Millis| *due > now;
    let due = heads.next_doubt.into_iter().chain(heads.hold);
    let due = due.chain(heads.next_overdue.filter(later)).chain(heads.next_hedge.filter(later));
    due.map(at).chain(pending.then(|| Instant::now() + REPAIR)).min()
}
