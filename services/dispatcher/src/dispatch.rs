//! The main loop: woken by an event, it reads heads, decides, commits and offers, until nothing more can be placed.

use std::{collections::HashSet, time::Duration};

use bus::BusError;
use index::{Heads, Held, Index, IndexError, Pick, WaitingGroup};
use invariant::impossible;
use model::{BuildKey, Group, Millis, WorkspaceKind};
use policy::{
    Lending, Placement, Random, place,
    workspace::{BuildKeys, live_keys},
};
use service::{Context, Current, Governance, ServiceError, Step, crash_point};
use telemetry::metrics::{Gauge, set};
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tracing::warn;

use crate::{
    Wakes,
    heads::{Drawn, HeadReader, Startable, allowance, startable},
    offer::{CLAIM_MARGIN, Offered, offer, take_back},
    warm::Warm,
};

/// Interval of the check that covers lost wake-ups; runs only while builds wait, are offered or run.
const REPAIR: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(100);

/// The reason why a pass failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PassError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Dispatches builds until the service stops.
pub(crate) async fn run(
    context: Context,
    index: Index,
    wakes: Wakes,
    warm: Warm,
    mut governance: watch::Receiver<Current>,
) -> Result<(), ServiceError> {
    // Without the quotas a group could exceed its limit in progress. The sender is dropped only if the service fails or
    // stops; then no build starts.
    tokio::select! {
        () = context.stop.cancelled() => return Ok(()),
        known = governance.wait_for(Option::is_some) => drop(known),
    }
    let mut dispatcher = Dispatcher {
        context: context.clone(),
        index,
        wakes,
        warm,
        governance,
        reader: HeadReader::default(),
        random: Random::new(seed()),
        lending: Lending::default(),
        offers: JoinSet::new(),
    };
    let mut timer: Option<Instant> = None;
    let mut failing = false;
    loop {
        tokio::select! {
            () = context.stop.cancelled() => break,
            () = dispatcher.wakes.dispatch.notified() => {}
            () = sleep_until(timer) => {}
            Some(_) = dispatcher.offers.join_next() => continue,
        }
        // Whatever woke it: on a busy farm that is rarely the timer.
        let due = timer.is_some_and(|at| at <= Instant::now());
        timer = match dispatcher.pass(due).await {
            Ok(again) => {
                failing = false;
                again
            }
            Err(error) => {
                // Log one warning for each outage of Redis, however long.
                if !failing {
                    warn!(
                        error = telemetry::error_chain(&error),
                        "cannot dispatch until redis and the bus answer"
                    );
                }
                failing = true;
                Some(Instant::now() + RETRY)
            }
        };
    }
    // Settle pending offers, so that refused builds do not wait for their deadlines.
    let limit = Duration::from_millis(context.settings.offer_timeout_ms);
    let settle = async { while dispatcher.offers.join_next().await.is_some() {} };
    // Offers that are not settled in time expire.
    let _ = tokio::time::timeout(limit, settle).await;
    Ok(())
}

async fn sleep_until(timer: Option<Instant>) {
    match timer {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// A different seed in each dispatcher, so that each draws other groups.
fn seed() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    high ^ low
}

struct Dispatcher {
    context: Context,
    index: Index,
    wakes: Wakes,
    warm: Warm,
    governance: watch::Receiver<Current>,
    reader: HeadReader,
    random: Random,
    /// Amounts that groups without a set point started on others' quotas.
    lending: Lending,
    offers: JoinSet<()>,
}

impl Dispatcher {
    /// Places builds until none can be placed; returns when to check again without a wake-up.
    async fn pass(&mut self, offers_due: bool) -> Result<Option<Instant>, PassError> {
        if offers_due {
            take_back(&self.context, &self.index).await?;
        }
        // Groups that have no build to start now.
        let mut done = HashSet::new();
        loop {
            let Some(governance) = self.governance.borrow().clone() else { return Ok(None) };
            let bus = &self.context.bus;
            let drawn = self.reader.read(bus, &self.index, &governance, &done, &mut self.random).await?;
            let (now, heads) = (self.context.bus.now(), &drawn.heads);
            if !heads.ready {
                self.wakes.rebuild.notify_one();
                return Ok(Some(Instant::now() + RETRY));
            }
            self.lending.decided(governance.record.tick);
            set(Gauge::BuildsRunning, &[], i64::try_from(heads.running).unwrap_or(i64::MAX));
            let picks = self.decide(&governance, &drawn, &mut done).await?;
            if picks.is_empty() {
                if !heads.idle.is_empty() && self.reader.has_more(heads, &done) {
                    continue;
                }
                return Ok(next_check(heads, now));
            }
            crash_point(Step::Picked);
            let started = self.commit(heads, picks, now).await?;
            self.borrow(&governance, &drawn, &started);
        }
    }

    /// Chooses the builds to start and their workspaces; changes neither the index nor the bus.
    async fn decide(
        &mut self,
        governance: &Governance,
        drawn: &Drawn,
        done: &mut HashSet<Group>,
    ) -> Result<Vec<Pick>, PassError> {
        let heads = &drawn.heads;
        let startable = startable(&self.index, governance, drawn, &self.lending).await?;
        let empty = heads.groups.iter().zip(&startable).filter(|(_, head)| head.builds.is_empty());
        done.extend(empty.map(|(group, _)| group.group.clone()));
        let placed = place(startable, heads.idle.len(), &mut self.random);
        let keys = self.keys(heads, &placed).await?;
        let assigned = self.warm.assign(&keys, heads.idle.clone());
        let warm = self.context.settings.warm_workspaces;
        let picks = placed.into_iter().zip(assigned).filter_map(|(placement, assignment)| {
            let (head, assignment) = (head_of(heads, &placement)?, assignment?);
            let kind = assignment.kind.unwrap_or(WorkspaceKind::New);
            Some(Pick {
                key: BuildKey { group: head.group.clone(), id: placement.build.build.id },
                version: head.version,
                sequence: placement.build.build.sequence,
                workspace: assignment.workspace,
                counts_as: placement.build.counts_as,
                kind: (placement.build.build.traits.warm && warm).then_some(kind),
            })
        });
        Ok(picks.collect())
    }

    /// The keys by which the placed builds choose a warm workspace; none for builds that do not request one.
    async fn keys(
        &self,
        heads: &Heads,
        placed: &[Placement<Startable>],
    ) -> Result<Vec<Option<BuildKeys>>, PassError> {
        let key_of = |placement: &Placement<Startable>| {
            let head = head_of(heads, placement)?;
            Some(BuildKey { group: head.group.clone(), id: placement.build.build.id })
        };
        let asking: Vec<BuildKey> =
            placed.iter().filter(|placement| placement.build.build.traits.warm).filter_map(key_of).collect();
        if asking.is_empty() || !self.context.settings.warm_workspaces {
            return Ok(vec![None; placed.len()]);
        }
        let records = self.context.bus.latest_many(&asking).await?;
        let live_keys_of = |placement: &Placement<Startable>| {
            let key = key_of(placement).filter(|_| placement.build.build.traits.warm)?;
            let (_, record) = records.iter().find(|(_, record)| record.build.key() == key)?;
            Some(live_keys(&record.build))
        };
        Ok(placed.iter().map(live_keys_of).collect())
    }

    /// Records what was started on others' quotas.
    fn borrow(&mut self, governance: &Governance, drawn: &Drawn, started: &[BuildKey]) {
        if governance.quotas.is_empty() {
            return;
        }
        for key in started {
            let head = drawn.heads.groups.iter().find(|head| head.group == key.group);
            let build = head.and_then(|head| head.builds.iter().find(|build| build.id == key.id));
            if let Some(build) = build {
                let allowance = allowance(governance, &self.lending, &key.group);
                self.lending.start(&key.group, &allowance, &build.traits.occupancy);
            }
        }
    }

    /// Commits and offers; returns the builds that got their workspace.
    async fn commit(
        &mut self,
        heads: &Heads,
        picks: Vec<Pick>,
        now: Millis,
    ) -> Result<Vec<BuildKey>, PassError> {
        let deadline = now.after(Duration::from_millis(self.context.settings.offer_timeout_ms));
        let (dispatched_at_us, held) = self.index.commit(&picks, deadline).await?;
        crash_point(Step::Committed);
        let mut kept = Vec::with_capacity(picks.len());
        for (pick, held) in picks.into_iter().zip(held) {
            if held != Held::No {
                self.warm.remove(&pick.workspace);
            }
            if held == Held::Yes {
                kept.push(pick);
            }
        }
        let started = kept.iter().map(|pick| pick.key.clone()).collect();
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
        Ok(started)
    }
}

/// The head of the group that a build was placed for.
fn head_of<'a>(heads: &'a Heads, placement: &Placement<Startable>) -> Option<&'a WaitingGroup> {
    let head = heads.groups.get(placement.group);
    if head.is_none() {
        impossible!(
            "the group {} of a placed build is not among {} heads",
            placement.group,
            heads.groups.len()
        );
    }
    head
}

/// When to check again without a wake-up: when the next offer expires, and at regular intervals while a lost wake-up
/// could leave a build waiting.
fn next_check(heads: &Heads, now: Millis) -> Option<Instant> {
    let pending = heads.waiting_groups + heads.offered + heads.running > 0;
    let offer = heads.next_offer.map(|at| Instant::now() + at.after(CLAIM_MARGIN).since(now));
    pending.then(|| Instant::now() + REPAIR).into_iter().chain(offer).min()
}
