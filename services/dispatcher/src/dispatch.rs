//! The loop: woken by an event, it reads the heads, decides, commits and offers, until nothing can be placed.

use std::time::Duration;

use index::{Heads, Index, IndexError, Pick, WaitingBuild};
use model::{BuildKey, Millis};
use policy::{GroupHead, place};
use service::{Context, ServiceError, Step, crash_point};
use telemetry::metrics::{Gauge, set};
use tokio::{task::JoinSet, time::Instant};
use tracing::warn;

use crate::{
    Wakes,
    offer::{Offered, offer, settle},
};

/// Workspaces looked at in one pass.
const IDLE_MAX: usize = 64;
/// The repair path for a lost wake-up; runs only while something waits, is offered or runs.
const REPAIR: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(100);

/// Dispatches until the service stops.
pub(crate) async fn run(context: Context, index: Index, wakes: Wakes) -> Result<(), ServiceError> {
    let mut dispatcher = Dispatcher { context: context.clone(), index, wakes, offers: JoinSet::new() };
    let mut timer: Option<Instant> = None;
    let mut failing = false;
    loop {
        let mut due = false;
        tokio::select! {
            () = context.stop.cancelled() => break,
            () = dispatcher.wakes.dispatch.notified() => {}
            () = sleep_until(timer) => due = true,
            Some(_) = dispatcher.offers.join_next() => continue,
        }
        timer = match dispatcher.pass(due).await {
            Ok(again) => {
                failing = false;
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
    let settle = async { while dispatcher.offers.join_next().await.is_some() {} };
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
    index: Index,
    wakes: Wakes,
    offers: JoinSet<()>,
}

impl Dispatcher {
    /// Places what can be placed; says when to look again if nothing wakes it before.
    async fn pass(&mut self, offers_due: bool) -> Result<Option<Instant>, IndexError> {
        if offers_due {
            settle(&self.context, &self.index, &[]).await?;
        }
        loop {
            let now = Millis::now();
            let heads = self.index.heads(now, IDLE_MAX).await?;
            if !heads.ready {
                self.wakes.rebuild.notify_one();
                return Ok(Some(Instant::now() + RETRY));
            }
            set(Gauge::BuildsRunning, &[], i64::try_from(heads.running).unwrap_or(i64::MAX));
            let picks = decide(&heads);
            if picks.is_empty() {
                return Ok(next_look(&heads, now));
            }
            crash_point(Step::Picked);
            self.commit(&heads, picks, now).await?;
        }
    }

    async fn commit(&mut self, heads: &Heads, picks: Vec<Pick>, now: Millis) -> Result<(), IndexError> {
        let deadline = now.after(Duration::from_millis(self.context.settings.offer_timeout_ms));
        let (dispatched_at_us, held) = self.index.commit(&picks, deadline).await?;
        crash_point(Step::Committed);
        let mut kept: Vec<Pick> =
            picks.into_iter().zip(held).filter_map(|(pick, held)| held.then_some(pick)).collect();
        kept.sort_by(|a, b| a.workspace.worker.cmp(&b.workspace.worker));
        for part in kept.chunk_by(|a, b| a.workspace.worker == b.workspace.worker) {
            let batch = Offered {
                picks: part.to_vec(),
                deadline,
                dispatched_at_us,
                dispatched_at_sequence: heads.watermark,
            };
            self.offers.spawn(offer(self.context.clone(), self.index.clone(), self.wakes.clone(), batch));
        }
        Ok(())
    }
}

/// When to look again if nothing wakes us: at the next offer that runs out, and once a while as long as there is
/// anything that a lost wake-up could leave lying.
fn next_look(heads: &Heads, now: Millis) -> Option<Instant> {
    let pending = heads.waiting_groups + heads.offered + heads.running > 0;
    let offer = heads.next_offer.map(|at| Instant::now() + at.since(now));
    pending.then(|| Instant::now() + REPAIR).into_iter().chain(offer).min()
}

/// Facts in, decision out.
fn decide(heads: &Heads) -> Vec<Pick> {
    let waiting = |builds: &[WaitingBuild]| GroupHead { builds: builds.iter().copied().collect() };
    let groups = heads.groups.iter().map(|group| waiting(&group.builds)).collect();
    let mut idle = heads.idle.clone();
    idle.sort();
    let key = |group: usize, build: WaitingBuild| {
        heads.groups.get(group).map(|head| BuildKey { group: head.group.clone(), id: build.id })
    };
    place(groups, idle)
        .into_iter()
        .filter_map(|placement| {
            Some(Pick {
                key: key(placement.group, placement.build)?,
                sequence: placement.build.sequence,
                workspace: placement.workspace,
            })
        })
        .collect()
}
