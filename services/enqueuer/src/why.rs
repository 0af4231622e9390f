//! Explains why a build waits, and reports the state of the quotas.

use std::collections::BTreeSet;

use bus::{Bus, millis};
use index::{Index, Standing, StandingLimits, WaitingBuild};
use model::{
    ApiError, BuildKey, BuildRecord, ErrorCode, GovernorRecord, Group, GroupStanding, InProgress, Millis,
    Occupancy, QuotaReply, State, Waiting, WhyReply,
};
use policy::{Allowance, Busy, Stand, Workspaces, share_of, weight, why, why_text, with_workers};
use service::Governance;

use crate::{failure::unavailable, list::live_workers};

/// Limits: builds read ahead of one, builds in progress listed, builds of all groups in progress read,
/// and waiting groups read.
const MOST: StandingLimits = StandingLimits { ahead: 4096, running: 20, busy: 512, groups: 64 };
/// Workspaces with room: the question about quotas ignores workspaces.
const ANY_WORKSPACE: Workspaces<'static> = Workspaces { idle: 1, busy: 0, busy_with: &[], share: 1.0 };

/// Explains why the build of `record` waits, if it does.
pub(crate) async fn why_of(bus: &Bus, index: &Index, record: &BuildRecord) -> Result<WhyReply, ApiError> {
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
            let waiting = waiting(bus, index, &build.key(), record).await?;
            reply.reason = match &waiting {
                // A build that waits for quota does not need the list of workers.
                Some(waiting) if waiting.workers.is_some_and(|workers| workers.full > 0) => {
                    format!("{}{}", why_text(waiting), full_workers(bus, index).await?)
                }
                Some(waiting) => why_text(waiting),
                None => "it is being offered to a worker or added to the queue".to_owned(),
            };
            reply.waiting = waiting;
        }
    }
    Ok(reply)
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
    key: &BuildKey,
    record: &BuildRecord,
) -> Result<Option<Waiting>, ApiError> {
    let standing = index.standing(key, MOST).await.map_err(unavailable)?;
    if !standing.ready {
        let what = "the queue is not indexed: a dispatcher rebuilds the index from the event stream within seconds; \
                    if this persists, no dispatcher is running";
        return Err(ApiError::new(ErrorCode::Unavailable, what));
    }
    let Some(place) = standing.place else { return Ok(None) };
    let known = Governance::read(bus).await.map_err(unavailable)?;
    let Governance { quotas, totals, record: decided, spare } = known;
    let now = bus.now();
    let before = || standing.ahead.iter().filter(|build| build.id != key.id);
    let ahead: Vec<&Occupancy> = before().map(|build| &build.traits.occupancy).collect();
    let ahead_ms: Vec<Option<u64>> = before().map(|build| build.traits.expected_ms).collect();
    let busy_with = busy_with(&standing, now);
    let weights: Vec<u64> = standing.some_waiting.iter().map(|group| weight(quotas.of(group))).collect();
    let workspaces = Workspaces {
        idle: standing.idle,
        busy: standing.busy,
        busy_with: &busy_with,
        share: share_of(weight(quotas.of(&key.group)), standing.waiting_groups, &weights),
    };
    let stand = Stand {
        before: place,
        queued: standing.queued,
        ahead: &ahead,
        ahead_ms: &ahead_ms,
        estimate: &record.build.occupancy,
        in_progress: &standing.in_progress,
        workspaces,
        ends: &standing.ends,
        now,
    };
    let allowance = Allowance::of(&key.group, &quotas, &totals, &decided).lending(spare.amount().clone());
    let mut waiting = why(&stand, &allowance);
    if waiting.idle_workspaces == 0 {
        waiting = with_workers(waiting, index.worker_counts(now).await.map_err(unavailable)?);
    }
    let in_progress = |build: WaitingBuild| InProgress { id: build.id, occupancy: build.traits.occupancy };
    waiting.in_progress = standing.running.into_iter().map(in_progress).collect();
    Ok(Some(waiting))
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

/// The state of the quotas of all groups.
pub(crate) async fn quota(bus: &Bus, index: &Index) -> Result<QuotaReply, ApiError> {
    let known = Governance::read(bus).await.map_err(unavailable)?;
    let Governance { quotas, totals, record: decided, spare } = known;
    // Without quotas nothing is governed, whatever the last decision says.
    let decided = if quotas.is_empty() { GovernorRecord::default() } else { decided };
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
            let stand = Stand {
                before: 0,
                queued: 1,
                ahead: &[],
                ahead_ms: &[],
                estimate: &head.traits.occupancy,
                in_progress: &in_progress,
                workspaces: ANY_WORKSPACE,
                ends: &[],
                now: Millis(0),
            };
            let waiting = why(&stand, &allowance);
            let waits = !waiting.throttled_by.is_empty() || !waiting.without_quota.is_empty();
            waits.then(|| why_text(&waiting))
        });
        GroupStanding {
            group: group.clone(),
            quota: quotas.groups.get(group).cloned(),
            governed: decided.groups.get(group).cloned().unwrap_or_default(),
            queued: demand.map_or(0, |demand| demand.queued),
            throttled,
            in_progress,
        }
    };
    let groups = names.into_iter().map(standing).collect();
    Ok(QuotaReply {
        tick: decided.tick,
        decided_at_ms: decided.at_ms,
        default: quotas.default.clone(),
        groups,
    })
}
