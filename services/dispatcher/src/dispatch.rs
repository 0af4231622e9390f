//! The main loop: woken by an event, it reads heads, decides, commits and offers, until nothing more can be placed.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use bus::Stored;
use index::{CommitLimits, Heads, Held, Index, Pick, WaitingBuild, WaitingGroup};
use invariant::impossible;
use model::{BuildKey, BuildRequirements, Group, Millis, Occupancy, WorkspaceKind};
use policy::{
    IdleWorkspaces, Lending, Placement, Random, Taken, place,
    workspace::{BuildKeys, Wish, live_keys},
};
use service::{Context, Current, Governance, ServiceError, Step, crash_point, sleep_until};
use settings::DispatcherSettings;
use tokio::{sync::watch, task::JoinSet, time::Instant};
use trace::WaitsFor;
use tracing::{debug, warn};

use crate::{
    Wakes,
    error::PassError,
    heads::{Drawn, Grants, HeadReader, Startable, allowance, startable},
    offer::{CLAIM_MARGIN, Offered, PickedBuild, offer, take_back},
    waits::Waits,
    workers::{Available, Workers},
};

/// Interval of the check that covers lost wake-ups; runs only while builds wait, are offered or run.
const REPAIR: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(100);
/// Number of different requirements from which further pages add none to a pass.
const REQUIRED_MAX: usize = 64;

/// Dispatches builds until the service stops.
pub(crate) async fn run(
    context: Context,
    settings: Arc<DispatcherSettings>,
    index: Index,
    wakes: Wakes,
    workers: Workers,
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
        settings: settings.clone(),
        index,
        wakes,
        workers,
        governance,
        reader: HeadReader::default(),
        random: Random::new(seed()),
        lending: Lending::default(),
        waits: Waits::default(),
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
                        "cannot dispatch until Redis and the bus answer"
                    );
                }
                failing = true;
                Some(Instant::now() + RETRY)
            }
        };
    }
    // Settle pending offers, so that refused builds do not wait for their deadlines.
    let settle = async { while dispatcher.offers.join_next().await.is_some() {} };
    // Offers that are not settled in time expire.
    let _ = tokio::time::timeout(settings.offer_timeout, settle).await;
    Ok(())
}

/// A different seed in each dispatcher, so that each draws other groups.
fn seed() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    high ^ low
}

struct Dispatcher {
    context: Context,
    settings: Arc<DispatcherSettings>,
    index: Index,
    wakes: Wakes,
    workers: Workers,
    governance: watch::Receiver<Current>,
    reader: HeadReader,
    random: Random,
    /// Amounts that groups without a set point started on others' quotas.
    lending: Lending,
    waits: Waits,
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
            self.waits.look(bus.clock().system_time(), heads);
            let picks = self.decide(&governance, &drawn, &mut done).await?;
            if picks.is_empty() {
                // The groups with an emergency were read, so other groups need a workspace that is not kept.
                if self.idle(heads, heads.idle.len()).for_others() > 0 && self.reader.has_more(heads, &done) {
                    continue;
                }
                return Ok(next_check(heads, now));
            }
            crash_point(Step::Picked);
            let started = self.commit(&governance, heads, picks, now).await?;
            self.borrow(&governance, &started);
        }
    }

    /// Chooses the builds to start and their workspaces; changes neither the index nor the bus.
    async fn decide(
        &mut self,
        governance: &Governance,
        drawn: &Drawn,
        done: &mut HashSet<Group>,
    ) -> Result<Vec<Chosen>, PassError> {
        let heads = &drawn.heads;
        let mut required = required_by(heads);
        let (available, idle, startable) = loop {
            let known = required.len();
            let available = self.workers.available(&heads.idle, &required);
            let idle = self.idle(heads, available.workspaces.len());
            let workspaces = (idle, available.supply.as_ref());
            let grants = Grants { governance, lending: &self.lending };
            let found =
                startable(&self.index, &grants, drawn, workspaces, &mut required, &mut self.waits).await?;
            // Builds on further pages may require something else.
            if required.len() == known || known > REQUIRED_MAX {
                break (available, idle, found);
            }
        };
        let Available { workspaces, mut supply } = available;
        let empty = heads.groups.iter().zip(&startable).filter(|(_, head)| head.is_empty());
        done.extend(empty.map(|(group, _)| group.group.clone()));
        let take = |startable: &Startable| {
            let requirements = &startable.build.traits.requirements;
            supply.as_mut().is_none_or(|supply| supply.take(requirements) == Taken::Idle)
        };
        let mut placed = place(startable, idle, take, &mut self.random);
        // Each head was read as if the whole room of the executors were its own.
        let mut executors = governance.executor_limit.admission(&heads.on_executors);
        placed.retain(|placement| {
            let WaitingBuild { priority, traits, .. } = &placement.build.build;
            if priority.is_emergency() {
                executors.pass(traits.sends_actions, &traits.occupancy);
                return true;
            }
            let fits = executors.consider(traits.sends_actions, &traits.occupancy).is_ok();
            if !fits {
                self.waits.note(&placement.build.build, WaitsFor::Executors);
            }
            fits
        });
        let (keys, records): (Vec<_>, Vec<_>) =
            self.read_warm(heads, &placed).await?.into_iter().map(Option::unzip).unzip();
        let required = placed.iter().map(|placement| &placement.build.build.traits.requirements);
        let to_place = placed.iter().map(|placement| {
            let (head, build) = (head_of(heads, placement)?, &placement.build.build);
            Some((BuildKey { group: head.group.clone(), id: build.id }, &build.traits.requirements))
        });
        let avoided = self.workers.avoided(to_place).unwrap_or_else(|| vec![Vec::new(); placed.len()]);
        let wishes: Vec<Wish<'_>> = required
            .zip(&keys)
            .zip(&avoided)
            .map(|((requirements, keys), avoid)| Wish { keys: keys.as_ref(), requirements, avoid })
            .collect();
        let assigned = self.workers.assign(&wishes, workspaces);
        let unassigned = placed.iter().zip(&assigned).filter(|(_, assignment)| assignment.is_none());
        let without_pick: Vec<Group> =
            unassigned.filter_map(|(placement, _)| Some(head_of(heads, placement)?.group.clone())).collect();
        let warm = self.settings.warm_workspaces;
        let picks = placed.into_iter().zip(assigned).zip(records).filter_map(|(placed, record)| {
            let (placement, assignment) = placed;
            let (head, assignment) = (head_of(heads, &placement)?, assignment?);
            // `None`: its record was not read, so nothing is known that a workspace could share with it.
            let kind = assignment.kind.unwrap_or(WorkspaceKind::New);
            let Startable { build, counts_as } = placement.build;
            let pick = Pick {
                key: BuildKey { group: head.group.clone(), id: build.id },
                version: head.version,
                sequence: build.sequence,
                workspace: assignment.workspace,
                counts_as,
                kind: (build.traits.warm && warm).then_some(kind),
            };
            // The build may have moved on since it was read as waiting.
            let record = record.filter(|record: &Stored| record.sequence == pick.sequence);
            Some(Chosen {
                build: PickedBuild { pick, record, waits: Vec::new() },
                estimate: build.traits.occupancy,
            })
        });
        let picks: Vec<Chosen> = picks.collect();
        // Builds without a workspace wait for one, and the rest of their groups with them.
        let is_picked = |group: &Group| picks.iter().any(|chosen| chosen.build.pick.key.group == *group);
        done.extend(without_pick.into_iter().filter(|group| !is_picked(group)));
        Ok(picks)
    }

    /// The idle workspaces for builds, of which `usable` may be assigned, and those that are kept for emergencies.
    fn idle(&self, heads: &Heads, usable: usize) -> IdleWorkspaces {
        let kept = self.settings.emergency_workspaces;
        IdleWorkspaces { usable, all: heads.all_idle, kept }
    }

    /// For each placed build that requests a warm workspace: the keys by which it is chosen, and the record with them.
    async fn read_warm(
        &self,
        heads: &Heads,
        placed: &[Placement<Startable>],
    ) -> Result<Vec<Option<(BuildKeys, Stored)>>, PassError> {
        let warm_workspaces = self.settings.warm_workspaces;
        let key_of = |placement: &Placement<Startable>| {
            let build = &placement.build.build;
            if !build.traits.warm || !warm_workspaces {
                return None;
            }
            let head = head_of(heads, placement)?;
            Some(BuildKey { group: head.group.clone(), id: build.id })
        };
        let asking: Vec<BuildKey> = placed.iter().filter_map(key_of).collect();
        let mut read = HashMap::with_capacity(asking.len());
        for stored in self.context.bus.records().latest_many_stored(&asking).await? {
            let record = stored.record()?;
            read.insert(record.build.key(), (live_keys(&record.build), stored));
        }
        Ok(placed.iter().map(|placement| read.remove(&key_of(placement)?)).collect())
    }

    /// Records what was started on others' quotas.
    fn borrow(&mut self, governance: &Governance, started: &[(Group, Occupancy)]) {
        if governance.quotas.is_empty() {
            return;
        }
        for (group, estimate) in started {
            let allowance = allowance(governance, &self.lending, group);
            self.lending.start(group, &allowance, estimate);
        }
    }

    /// Commits and offers; returns the groups and estimates of the builds that got their workspace.
    async fn commit(
        &mut self,
        governance: &Governance,
        heads: &Heads,
        chosen: Vec<Chosen>,
        now: Millis,
    ) -> Result<Vec<(Group, Occupancy)>, PassError> {
        let picks: Vec<Pick> = chosen.iter().map(|chosen| chosen.build.pick.clone()).collect();
        let deadline = now.after(self.settings.offer_timeout);
        let is_limited = !governance.executor_limit.is_unlimited();
        let limits = CommitLimits {
            kept: self.settings.emergency_workspaces,
            executors: is_limited.then_some(heads.on_executors_version),
        };
        let (dispatched_at_us, held) = self.index.commit(&picks, limits, deadline).await?;
        crash_point(Step::Committed);
        let mut kept = Vec::with_capacity(picks.len());
        let mut started = Vec::with_capacity(picks.len());
        for (Chosen { build, estimate }, held) in chosen.into_iter().zip(held) {
            let Pick { key, workspace, .. } = &build.pick;
            debug!(%key, %workspace, ?held, dispatched_at_us, watermark = %heads.watermark, "picked");
            if held != Held::No {
                self.workers.remove(&build.pick.workspace);
            }
            if held == Held::Yes {
                started.push((build.pick.key.group.clone(), estimate));
                let waits = self.waits.changes_of(build.pick.key.id, build.pick.sequence);
                kept.push(PickedBuild { waits, ..build });
            }
        }
        kept.sort_by(|a: &PickedBuild, b| a.pick.workspace.worker.cmp(&b.pick.workspace.worker));
        for part in kept.chunk_by(|a, b| a.pick.workspace.worker == b.pick.workspace.worker) {
            let batch = Offered {
                builds: part.to_vec(),
                deadline,
                dispatched_at_us,
                dispatched_at_sequence: heads.watermark,
            };
            self.offers.spawn(offer(self.context.clone(), self.index.clone(), self.wakes.clone(), batch));
        }
        Ok(started)
    }
}

/// What the builds at the heads require of their workers.
fn required_by(heads: &Heads) -> BTreeSet<BuildRequirements> {
    let builds = heads.groups.iter().flat_map(|head| &head.builds);
    let required = builds.map(|build| &build.traits.requirements).filter(|required| !required.is_empty());
    required.cloned().collect()
}

/// A build to start, with the estimate of its occupancy. The estimate is not in the heads if the build was read from a
/// further page of its queue.
struct Chosen {
    build: PickedBuild,
    estimate: Occupancy,
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
