//! Why a build waits, and how the quotas stand.

use std::collections::BTreeSet;

use bus::Bus;
use index::{Index, WaitingBuild};
use model::{
    ApiError, BuildKey, BuildRecord, ErrorCode, GovernorRecord, Group, GroupStanding, InProgress, Millis,
    Occupancy, QuotaReply, State, Waiting, WhyReply,
};
use policy::{Allowance, Stand, why, why_text};
use service::Governance;

use crate::failure::unavailable;

/// Builds before one that are looked at, and builds in progress that are named.
const AHEAD_MAX: usize = 4096;
const RUNNING_MAX: usize = 20;

/// Why the build of `record` waits, if it does.
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
        waiting: None,
    };
    match (record.state(), record.invocation()) {
        (State::InProgress, Some(invocation)) => {
            let (worker, workspace) = (&invocation.worker, invocation.workspace);
            reply.reason = format!("it waits no more: it runs in workspace {worker}/{workspace}");
        }
        (State::Finished, _) => "it waits no more: it is finished".clone_into(&mut reply.reason),
        (State::Enqueued | State::InProgress, _) => {
            let waiting = waiting(bus, index, &build.key(), record).await?;
            reply.reason = match &waiting {
                Some(waiting) => why_text(waiting),
                None => "it is offered to a worker, or about to be in the queue".to_owned(),
            };
            reply.waiting = waiting;
        }
    }
    Ok(reply)
}

async fn waiting(
    bus: &Bus,
    index: &Index,
    key: &BuildKey,
    record: &BuildRecord,
) -> Result<Option<Waiting>, ApiError> {
    let standing = index.standing(key, AHEAD_MAX, RUNNING_MAX).await.map_err(unavailable)?;
    if !standing.ready {
        let what = "the index is being rebuilt from the event stream: ask again in some seconds";
        return Err(ApiError::new(ErrorCode::Unavailable, what));
    }
    let Some(place) = standing.place else { return Ok(None) };
    let Governance { quotas, totals, record: decided } = Governance::read(bus).await.map_err(unavailable)?;
    let ahead: Vec<&Occupancy> =
        standing.ahead.iter().filter(|b| b.id != key.id).map(|b| &b.traits.occupancy).collect();
    let stand = Stand {
        before: place,
        queued: standing.queued,
        ahead: &ahead,
        estimate: &record.build.occupancy,
        in_progress: &standing.in_progress,
        idle: standing.idle,
        ends: &standing.ends,
        now: Millis::now(),
    };
    let allowance = Allowance::of(&key.group, &quotas, &totals, &decided);
    let mut waiting = why(&stand, &allowance);
    let named = |build: WaitingBuild| InProgress { id: build.id, occupancy: build.traits.occupancy };
    waiting.in_progress = standing.running.into_iter().map(named).collect();
    Ok(Some(waiting))
}

/// How the quotas of all groups stand.
pub(crate) async fn quota(bus: &Bus, index: &Index) -> Result<QuotaReply, ApiError> {
    let Governance { quotas, totals, record: decided } = Governance::read(bus).await.map_err(unavailable)?;
    // Without quotas nothing is governed, whatever was decided before.
    let decided = if quotas.is_empty() { GovernorRecord::default() } else { decided };
    let demands = index.demands(1).await.map_err(unavailable)?;
    let demanding = demands.iter().map(|demand| &demand.group);
    let names: BTreeSet<&Group> =
        quotas.groups.keys().chain(decided.groups.keys()).chain(demanding).collect();
    let standing = |group: &Group| {
        let demand = demands.iter().find(|demand| demand.group == *group);
        let in_progress = demand.map(|demand| demand.in_progress.clone()).unwrap_or_default();
        let allowance = Allowance::of(group, &quotas, &totals, &decided);
        let head = demand.and_then(|demand| demand.waiting.first());
        let throttled = head.and_then(|head| {
            let stand = Stand {
                before: 0,
                queued: 1,
                ahead: &[],
                estimate: &head.traits.occupancy,
                in_progress: &in_progress,
                // Workspaces are not a matter of quota.
                idle: 1,
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
