//! Explains why a build waits, and reports the state of the quotas.

use std::collections::{BTreeMap, BTreeSet};

use bus::{Bus, BusError, Lifecycle as _, millis};
use index::{Index, Standing, StandingLimits, Traits, WaitingBuild, WaitingCount};
use model::{
    ApiError, BuildId, BuildKey, BuildRecord, BuildRequirements, ErrorCode, EstimateError, ExecutorType,
    Group, GroupStanding, Millis, Occupancy, QuotaReply, Sequence, State, Waiting, WaitingBuilds, WhyReply,
    WorkerCounts, WorkerStatus, WorkerView,
};
use policy::{
    Admission, Allowance, Busy, Stand, Supplied, Supply, WorkspaceCounts, Workspaces, can_run, share_of,
    weight, why, why_executors, why_text, with_workers, workspace_counts,
};
use service::Governance;

use crate::{
    failure::unavailable,
    list::{live_workers, workers},
};

/// Limits: builds read ahead of one, builds in progress listed, builds of all groups in progress read,
/// and waiting groups read.
const MOST: StandingLimits = StandingLimits { ahead: 4096, running: 20, busy: 512, groups: 64 };
/// Maximum number of first builds whose times are read for the state of the quotas.
const FIRSTS_MAX: usize = 200;
/// Workspaces with room: the question about quotas ignores workspaces.
const ANY_WORKSPACE: Workspaces<'static> =
    Workspaces { idle: 1, kept: 0, busy: 0, busy_with: &[], share: 1.0 };

/// Explains why the build of `record` waits, if it does. For emergencies, `emergency_workspaces` idle workspaces are
/// kept that no other build uses.
pub(crate) async fn why_of(
    bus: &Bus,
    index: &Index,
    record: &BuildRecord,
    emergency_workspaces: u64,
) -> Result<WhyReply, ApiError> {
    let build = &record.build;
    let mut reply = WhyReply {
        id: build.id,
        group: build.group.clone(),
        priority: build.priority,
        state: record.state(),
        waiting_since_ms: record.queue.enqueued_at_ms,
        reason: String::new(),
        reserves: build.occupancy.clone(),
        expected_ms: build.expected_ms,
        waiting: None,
    };
    match (record.state(), record.invocation()) {
        (State::InProgress, Some(invocation)) => {
            let (worker, workspace) = (&invocation.worker, invocation.workspace);
            reply.reason = format!("it is not waiting: it is running in workspace {worker}/{workspace}");
        }
        (State::Finished, _) => "it is not waiting: it has finished".clone_into(&mut reply.reason),
        (State::Enqueued | State::InProgress, _) => {
            let waiting = waiting(bus, index, record, emergency_workspaces).await?;
            reply.reason = match &waiting {
                // A build that waits for quota does not need the list of workers.
                Some(waiting) if waiting.workers.is_some_and(|workers| workers.full > 0) => {
                    format!("{}{}", why_text(waiting), full_workers(bus, index).await?)
                }
                Some(waiting) => why_text(waiting),
                None if is_unsealed(bus, record).await => {
                    "it is not started: the process that accepted it has no key for seals \
                    (setting seal_key_file); cancel it, and give the key to all enqueuers and gateways"
                        .to_owned()
                }
                None => "it is being offered to a worker or added to the queue".to_owned(),
            };
            reply.waiting = waiting;
        }
    }
    Ok(reply)
}

/// Whether dispatchers do not start the build because it has no seal.
async fn is_unsealed(bus: &Bus, record: &BuildRecord) -> bool {
    let first = bus.stream(BuildRecord::STREAM).first_from(&record.subject(), Sequence(1)).await;
    let Ok(Some(first)) = first else { return false };
    matches!(bus.check_accepted::<BuildRecord>(&first).await, Err(BusError::Unsealed { .. }))
}

/// Describes the workers that accept no builds because of their disk or their store, as the rest of a sentence.
async fn full_workers(bus: &Bus, index: &Index) -> Result<String, ApiError> {
    let workers = live_workers(index, bus.now()).await?;
    let mut short = workers.iter().filter_map(|view| view.heartbeat.short.as_ref());
    let Some(first) = short.next() else { return Ok(String::new()) };
    Ok(format!("; {} of {} workers accept no builds: {first}", short.count() + 1, workers.len()))
}

async fn waiting(
    bus: &Bus,
    index: &Index,
    record: &BuildRecord,
    emergency_workspaces: u64,
) -> Result<Option<Waiting>, ApiError> {
    let key = &record.build.key();
    let standing = index.standing(key, MOST).await.map_err(unavailable)?;
    if !standing.ready {
        let what = "the queue is not indexed: a dispatcher rebuilds the index from the event stream within seconds; \
                    if this persists, no dispatcher is running";
        return Err(ApiError::new(ErrorCode::Unavailable, what));
    }
    let Some(place) = standing.place else { return Ok(None) };
    let known = Governance::read(bus).await.map_err(unavailable)?;
    let Governance { quotas, totals, record: decided, spare, executor_limit } = known;
    let now = bus.now();
    let allowance = Allowance::of(&key.group, &quotas, &totals, &decided).lending(spare.amount().clone());
    let requirements = &record.build.requirements;
    let is_plain = |build: &WaitingBuild| build.traits.requirements.is_empty();
    let before = standing.ahead.iter().filter(|build| build.id != key.id);
    let (before, able) = if requirements.is_empty() && standing.ahead.iter().all(is_plain) {
        (before.collect(), None)
    } else {
        let views = workers(bus, index).await?;
        let before = reserving(before, &views, allowance.admission(&standing.in_progress));
        (before, (!requirements.is_empty()).then(|| Able::of(&views, requirements)))
    };
    let ahead: Vec<&Occupancy> = before.iter().map(|build| &build.traits.occupancy).collect();
    let ahead_ms: Vec<Option<u64>> = before.iter().map(|build| build.traits.expected_ms).collect();
    let busy_with = busy_with(&standing, now);
    let weights: Vec<u64> = standing.some_waiting.iter().map(|group| weight(quotas.of(group))).collect();
    let (idle, busy, busy_with) = match &able {
        // Which builds its workspaces have, and for how long, is not known here.
        Some(able) => (able.idle, able.busy, &[][..]),
        None => (standing.idle, standing.busy, busy_with.as_slice()),
    };
    let workspaces = Workspaces {
        idle,
        kept: emergency_workspaces,
        busy,
        busy_with,
        share: share_of(weight(quotas.of(&key.group)), standing.waiting_groups, &weights),
    };
    let stand = Stand {
        before: place,
        queued: standing.queued,
        ahead: &ahead,
        ahead_ms: &ahead_ms,
        priority: record.build.priority,
        estimate: &record.build.occupancy,
        in_progress: &standing.in_progress,
        workspaces,
        ends: &standing.ends,
        now,
    };
    let mut waiting = why(&stand, &allowance);
    if record.build.sends_actions && !executor_limit.is_unlimited() {
        let demand = index.executor_demand().await.map_err(unavailable)?;
        let ahead = before.iter().map(|build| (build.traits.sends_actions, &build.traits.occupancy));
        waiting = why_executors(waiting, &executor_limit, &demand.in_progress, ahead, (true, &stand));
    }
    if waiting.idle_workspaces == 0 {
        let workers = match &able {
            Some(able) => able.workers,
            None => index.worker_counts(now).await.map_err(unavailable)?,
        };
        waiting = with_workers(waiting, workers);
    }
    waiting.requirements = requirements.clone();
    waiting.in_progress = standing.running;
    Ok(Some(waiting))
}

/// The live workers that can run a build, and their workspaces.
struct Able {
    workers: WorkerCounts,
    idle: u64,
    busy: u64,
}

impl Able {
    fn of(views: &[WorkerView], requirements: &BuildRequirements) -> Self {
        let mut able = Self { workers: WorkerCounts::default(), idle: 0, busy: 0 };
        for WorkerView { heartbeat } in
            views.iter().filter(|view| can_run(&view.heartbeat.properties, requirements))
        {
            let count = match heartbeat.status {
                WorkerStatus::Ready => &mut able.workers.ready,
                WorkerStatus::Draining => &mut able.workers.draining,
                WorkerStatus::Full => &mut able.workers.full,
                WorkerStatus::Gone => continue,
            };
            *count += 1;
            let counts = workspace_counts(heartbeat);
            (able.idle, able.busy) = (able.idle + counts.idle as u64, able.busy + counts.busy as u64);
        }
        able
    }
}

/// The builds of `ahead` that reserve quota: those for which live workers have a workspace that no build before them takes.
/// As in dispatch, a build that waits for its quota takes none.
fn reserving<'a>(
    ahead: impl Iterator<Item = &'a WaitingBuild>,
    views: &[WorkerView],
    mut admission: Admission<'_>,
) -> Vec<&'a WaitingBuild> {
    let supplied = views.iter().map(|WorkerView { heartbeat }| {
        let WorkspaceCounts { idle, busy } = workspace_counts(heartbeat);
        Supplied { offers: heartbeat.properties.clone().into(), idle, busy }
    });
    let mut supply = Supply::of(supplied);
    let reserves = |build: &&WaitingBuild| {
        let Traits { requirements, occupancy, .. } = &build.traits;
        if !supply.has_any(requirements) {
            return false;
        }
        if admission.consider(occupancy).is_ok() {
            supply.take(requirements);
        }
        true
    };
    ahead.filter(reserves).collect()
}

/// The builds in the farm's workspaces, with their run times.
fn busy_with(standing: &Standing, now: Millis) -> Vec<Busy> {
    let ran_ms = |since: Millis| millis(now.since(since));
    let busy = standing.busy_with.iter().map(|build| Busy {
        own: build.own,
        expected_ms: build.expected_ms,
        // An offered build has not started.
        ran_ms: build.since.map(ran_ms).unwrap_or_default(),
    });
    busy.collect()
}

/// The state of the quotas of all groups, with the accuracy of this enqueuer's `estimates`.
pub(crate) async fn quota(
    bus: &Bus,
    index: &Index,
    estimates: BTreeMap<ExecutorType, EstimateError>,
) -> Result<QuotaReply, ApiError> {
    let known = Governance::read(bus).await.map_err(unavailable)?;
    let on_executors = index.executor_demand().await.map_err(unavailable)?.in_progress;
    let Governance { quotas, totals, record: decided, spare, executor_limit } = known;
    let demands = index.demands(1).await.map_err(unavailable)?;
    let demanding = demands.iter().map(|demand| &demand.group);
    let names: BTreeSet<&Group> =
        quotas.groups.keys().chain(decided.groups.keys()).chain(demanding).collect();
    let standing = |group: &Group| {
        let demand = demands.iter().find(|demand| demand.group == *group);
        let in_progress = demand.map(|demand| demand.in_progress.clone()).unwrap_or_default();
        let allowance = Allowance::of(group, &quotas, &totals, &decided).lending(spare.amount().clone());
        let head = demand.and_then(|demand| demand.waiting.first());
        let throttled = head.and_then(|head| {
            let (estimate, sends_actions) = (&head.traits.occupancy, head.traits.sends_actions);
            let stand = Stand {
                before: 0,
                queued: 1,
                ahead: &[],
                ahead_ms: &[],
                priority: head.priority,
                estimate,
                in_progress: &in_progress,
                workspaces: ANY_WORKSPACE,
                ends: &[],
                now: Millis(0),
            };
            let waiting = why(&stand, &allowance);
            let own = (sends_actions, &stand);
            let waiting = why_executors(waiting, &executor_limit, &on_executors, [], own);
            let waits = !waiting.throttled_by.is_empty() || !waiting.without_quota.is_empty();
            waits.then(|| why_text(&waiting))
        });
        GroupStanding {
            group: group.clone(),
            quota: quotas.groups.get(group).cloned(),
            governed: decided.groups.get(group).cloned().unwrap_or_default(),
            queued: demand.map_or(0, |demand| demand.queued),
            waiting: Vec::new(),
            throttled,
            in_progress,
        }
    };
    let mut groups: Vec<GroupStanding> = names.into_iter().map(standing).collect();
    count_waiting(bus, index, &mut groups).await?;
    Ok(QuotaReply {
        tick: decided.tick,
        decided_at_ms: decided.at_ms,
        default: quotas.default.clone(),
        groups,
        executors: decided.executors,
        estimates,
    })
}

/// Adds the waiting builds of each group by priority.
async fn count_waiting(bus: &Bus, index: &Index, groups: &mut [GroupStanding]) -> Result<(), ApiError> {
    let waiting: Vec<Group> = groups.iter().filter(|it| it.queued > 0).map(|it| it.group.clone()).collect();
    if waiting.is_empty() {
        return Ok(());
    }
    let counts = index.waiting_counts(&waiting).await.map_err(unavailable)?;
    let key = |count: &WaitingCount| BuildKey { group: count.group.clone(), id: count.first };
    let firsts: Vec<BuildKey> = counts.iter().take(FIRSTS_MAX).map(key).collect();
    let records = bus.records().latest_many(&firsts).await.map_err(unavailable)?;
    let since: BTreeMap<BuildId, Millis> =
        records.into_iter().map(|(_, record)| (record.build.id, record.queue.enqueued_at_ms)).collect();
    let mut by_group: BTreeMap<Group, Vec<WaitingBuilds>> = BTreeMap::new();
    for WaitingCount { group, priority, count, first } in counts {
        let first_since_ms = since.get(&first).copied();
        by_group.entry(group).or_default().push(WaitingBuilds { priority, count, first_since_ms });
    }
    for standing in groups {
        standing.waiting = by_group.remove(&standing.group).unwrap_or_default();
    }
    Ok(())
}
