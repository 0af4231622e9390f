//! The loop: woken by an event, it settles and reads the heads, decides, commits and offers, until nothing can be placed.

use std::time::Duration;

use index::{
    IndexError,
    actions::{Actions, Answer, Committed, Heads, Pick, PoolHead, Verdict},
};
use model::Millis;
use policy::actions::{Free, assign};
use service::{Context, ServiceError, Step, crash_point};
use telemetry::metrics::{Gauge, set};
use tokio::{task::JoinSet, time::Instant};
use tracing::warn;

use crate::{
    Wakes,
    offer::{Answers, offer},
};

/// Executions of a pool looked at in one pass.
const HEAD_MAX: usize = 256;
/// Free executors of a pool that the index names at most.
const FREE_MAX: usize = 64;
/// How long an executor that let an offer run out may take to say whether it has it.
const GRACE: Duration = Duration::from_millis(500);
/// The repair path for a lost wake-up; runs only while something waits or is claimed.
const REPAIR: Duration = Duration::from_secs(1);
/// Answers that free nothing are settled with the next pass, which is forced after this.
const SETTLE: Duration = Duration::from_millis(200);
const RETRY: Duration = Duration::from_millis(100);
/// From one pass to the next at least while executions wait for others to end: a pass then places several.
const APART: Duration = Duration::from_millis(2);

/// Dispatches until the service stops.
pub(crate) async fn run(context: Context, actions: Actions, wakes: Wakes) -> Result<(), ServiceError> {
    let answers = Answers::default();
    let mut dispatcher = Dispatcher {
        context: context.clone(),
        actions,
        wakes,
        answers,
        offers: JoinSet::new(),
        crowded: false,
    };
    let mut timer: Option<Instant> = None;
    let mut failing = false;
    let mut next_pass = Instant::now();
    loop {
        tokio::select! {
            () = context.stop.cancelled() => break,
            () = dispatcher.wakes.dispatch.notified() => {}
            () = sleep_until(timer) => {}
            Some(_) = dispatcher.offers.join_next() => {
                timer = Some(Instant::now() + SETTLE).into_iter().chain(timer).min();
                continue;
            }
        }
        tokio::time::sleep_until(next_pass).await;
        let begun = Instant::now();
        timer = match dispatcher.pass().await {
            Ok(again) => {
                failing = false;
                next_pass = if dispatcher.crowded { begun + APART } else { begun };
                again
            }
            Err(error) => {
                // Once for a Redis that is away, however long.
                if !failing {
                    warn!(
                        error = telemetry::error_chain(&error),
                        "dispatching again as soon as redis answers"
                    );
                }
                failing = true;
                Some(Instant::now() + RETRY)
            }
        };
    }
    // Offers on their way are settled, so that what was refused does not wait for its deadline.
    let limit = Duration::from_millis(context.settings.offer_timeout_ms);
    let settle = async {
        while dispatcher.offers.join_next().await.is_some() {}
        dispatcher.settle().await;
    };
    let _ = tokio::time::timeout(limit, settle).await;
    Ok(())
}

async fn sleep_until(timer: Option<Instant>) {
    match timer {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

struct Dispatcher {
    context: Context,
    actions: Actions,
    wakes: Wakes,
    answers: Answers,
    offers: JoinSet<()>,
    /// The last pass left executions waiting.
    crowded: bool,
}

impl Dispatcher {
    /// Places what can be placed; says when to look again if nothing wakes it before.
    async fn pass(&mut self) -> Result<Option<Instant>, IndexError> {
        loop {
            let now = Millis::now();
            let heads = self.heads(now, HEAD_MAX).await?;
            if !heads.ready {
                self.wakes.rebuild.notify_one();
                return Ok(Some(Instant::now() + RETRY));
            }
            set(Gauge::ExecutionsWaiting, &[], i64::try_from(heads.waiting).unwrap_or(i64::MAX));
            if heads.next_overdue.is_some_and(|at| at <= now) {
                self.wakes.overdue.notify_one();
            }
            let picks = decide(&heads.pools);
            self.crowded = heads.waiting > picks.len() as u64;
            if picks.is_empty() {
                return Ok(next_look(&heads, now));
            }
            crash_point(Step::ActionPicked);
            let wanted = picks.len();
            let deadline = now.after(Duration::from_millis(self.context.settings.offer_timeout_ms));
            let committed = self.actions.commit(picks, now, deadline).await?;
            crash_point(Step::ActionCommitted);
            let all = committed.len() == wanted;
            self.offer(committed, deadline);
            // Unless there was more than a look shows, or someone else was faster, this was all that could be placed.
            if all && !heads.pools.iter().any(is_cut) {
                return Ok(next_look(&heads, now));
            }
        }
    }

    /// Settles the answers that came, and reads the heads.
    async fn heads(&self, now: Millis, max: usize) -> Result<Heads, IndexError> {
        let answers = self.answers.take();
        match self.actions.heads(now, max, GRACE, &answers).await {
            Ok(heads) => {
                let busy = |answer: &Answer| answer.verdict == Verdict::Busy;
                if heads.silent > 0 || answers.iter().any(busy) {
                    self.wakes.ask.notify_one();
                }
                Ok(heads)
            }
            Err(error) => {
                self.answers.put_back(answers);
                Err(error)
            }
        }
    }

    async fn settle(&self) {
        if let Err(error) = self.heads(Millis::now(), 0).await {
            warn!(error = telemetry::error_chain(&error), "offers were not settled; their deadline does");
        }
    }

    fn offer(&mut self, mut committed: Vec<Committed>, deadline: Millis) {
        committed.sort_by(|a, b| a.pick.executor.cmp(&b.pick.executor));
        for part in committed.chunk_by(|a, b| a.pick.executor == b.pick.executor) {
            let (context, wakes, answers) = (self.context.clone(), self.wakes.clone(), self.answers.clone());
            self.offers.spawn(offer(context, wakes, answers, part.to_vec(), deadline));
        }
    }
}

/// Whether a pool may have more to place than was shown.
fn is_cut(head: &PoolHead) -> bool {
    head.waiting.len() >= HEAD_MAX || head.free.len() >= FREE_MAX
}

/// When to look again if nothing wakes us: at the next time that something is due, and once a while as long as there is
/// anything that a lost wake-up could leave lying.
fn next_look(heads: &Heads, now: Millis) -> Option<Instant> {
    let at = |due: Millis| Instant::now() + due.since(now);
    let pending = heads.waiting + heads.claimed > 0;
    let due =
        heads.next_offer.into_iter().chain(heads.hold).chain(heads.next_overdue.filter(|due| *due > now));
    due.map(at).chain(pending.then(|| Instant::now() + REPAIR)).min()
}

/// Facts in, decision out.
fn decide(pools: &[PoolHead]) -> Vec<Pick> {
    let one = |head: &PoolHead| {
        let free: Vec<_> = head
            .free
            .iter()
            .map(|(executor, slots)| Free { executor: executor.clone(), slots: *slots })
            .collect();
        assign(head.waiting.clone(), &free)
    };
    let assigned = pools.iter().flat_map(one);
    assigned.map(|it| Pick { key: it.execution, executor: it.executor }).collect()
}
