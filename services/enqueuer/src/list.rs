//! Lists of builds: selected from the index, with each build's record from the stream.

use std::collections::HashSet;

use bus::{Bus, FromJson as _, Message as _};
use futures::{StreamExt as _, TryStreamExt as _};
use index::Index;
use model::{
    ApiError, BuildId, BuildKey, BuildView, ErrorCode, Group, GroupsReply, Heartbeat, ListReply, ListRequest,
    Millis, Outcome, State, WorkerView, Workspace, WorkspaceState,
};
use policy::listing;
use tracing::debug;

use crate::failure::unavailable;

/// Maximum size of a list in bytes: a reply is one message of at most 1 MiB.
const LIST_BYTES_MAX: usize = 900 << 10;
const LIMIT: usize = 50;
const LIMIT_MAX: usize = 1000;
/// Number of groups whose builds are read at a time.
const GROUPS_AT_ONCE: usize = 16;
/// Maximum number of running builds that are matched to workspaces.
const RUNNING_MAX: isize = 1000;

/// The newest builds of `group`; waiting builds in the order in which they will start.
pub(crate) async fn list(
    bus: &Bus,
    index: &Index,
    group: &Group,
    request: &ListRequest,
) -> Result<ListReply, ApiError> {
    let limit = limit_of(request)?;
    let filtered = request.outcome.is_some() || !request.labels.is_empty() || request.id_prefix.is_some();
    // The results are filtered below, so more are read than requested.
    let all = filtered || matches!(request.state, Some(State::InProgress | State::Finished));
    let most = isize::try_from(if all { LIMIT_MAX } else { limit }).unwrap_or(isize::MAX);
    let mut ids: Vec<BuildId> = match request.state {
        Some(State::Enqueued) => index.waiting(group, most).await,
        None | Some(State::InProgress | State::Finished) => index.recent(group, most).await,
    }
    .map_err(unavailable)?;
    if let Some(prefix) = &request.id_prefix {
        ids.retain(|id| has_prefix(*id, prefix));
    }
    let keys: Vec<BuildKey> = ids.iter().map(|id| BuildKey { group: group.clone(), id: *id }).collect();
    let mut found: std::collections::HashMap<BuildId, BuildView> = bus
        .records()
        .latest_many(&keys)
        .await
        .map_err(unavailable)?
        .into_iter()
        .map(|(sequence, record)| (record.build.id, BuildView::new(sequence, record)))
        .collect();
    let wanted = |view: &BuildView| {
        let labels = &view.record.build.labels;
        request.state.is_none_or(|state| view.state == state)
            && request.outcome.is_none_or(|outcome| outcome_of(view) == Some(outcome))
            && request.labels.iter().all(|(name, value)| labels.get(name) == Some(value))
    };
    let builds = ids.iter().filter_map(|id| found.remove(id)).filter(wanted).take(limit).collect();
    Ok(within_a_message(ListReply { builds, truncated: false, next: None }))
}

fn limit_of(request: &ListRequest) -> Result<usize, ApiError> {
    let limit = request.limit.unwrap_or(LIMIT);
    if (1..=LIMIT_MAX).contains(&limit) {
        return Ok(limit);
    }
    let why = format!("invalid field limit {limit}: expected 1 to {LIMIT_MAX}");
    Err(ApiError::new(ErrorCode::InvalidRequest, why))
}

/// The first builds of the list, as many as fit into one message.
fn within_a_message(mut list: ListReply) -> ListReply {
    let mut room = LIST_BYTES_MAX;
    let fits = |view: &BuildView| {
        let size = view.to_json().len();
        let fits = size <= room;
        room = room.saturating_sub(size);
        fits
    };
    let count = list.builds.iter().map(fits).take_while(|fits| *fits).count();
    list.truncated |= count < list.builds.len();
    list.builds.truncate(count);
    list
}

/// The newest builds of all groups. Few are read of each group first, then more of those whose next ones can be
/// among the newest, too.
pub(crate) async fn of_all_groups(
    bus: &Bus,
    index: &Index,
    request: &ListRequest,
) -> Result<ListReply, ApiError> {
    let groups = index.groups().await.map_err(unavailable)?;
    let limit = limit_of(request)?;
    let first = match request.state {
        // What waits is in the order in which it will start.
        Some(State::Enqueued) => limit,
        Some(State::InProgress | State::Finished) | None => listing::first_of_each(groups.len(), limit),
    };
    let mut replies =
        of_each(bus, index, &groups, &ListRequest { limit: Some(first), ..request.clone() }).await?;
    let again = listing::to_ask_again(&replies, first, limit);
    let asked: Vec<Group> = again.iter().filter_map(|at| groups.get(*at)).cloned().collect();
    let more = of_each(bus, index, &asked, &ListRequest { limit: Some(limit), ..request.clone() }).await?;
    for (at, reply) in again.into_iter().zip(more) {
        if let Some(known) = replies.get_mut(at) {
            *known = reply;
        }
    }
    Ok(within_a_message(listing::of_all_groups(replies, limit)))
}

/// The newest builds of each group, in the order of `groups`.
async fn of_each(
    bus: &Bus,
    index: &Index,
    groups: &[Group],
    request: &ListRequest,
) -> Result<Vec<ListReply>, ApiError> {
    let list = |group: Group| async move { list(bus, index, &group, request).await };
    futures::stream::iter(groups.iter().cloned().map(list)).buffered(GROUPS_AT_ONCE).try_collect().await
}

fn outcome_of(view: &BuildView) -> Option<Outcome> {
    view.record.result().map(|result| result.outcome)
}

/// Whether the id starts with `prefix`, ignoring case, with or without its dashes.
fn has_prefix(id: BuildId, prefix: &str) -> bool {
    let plain = |text: &str| text.replace('-', "").to_ascii_lowercase();
    plain(&id.to_string()).starts_with(&plain(prefix))
}

/// Groups that recently had a build.
pub(crate) async fn groups(index: &Index) -> Result<GroupsReply, ApiError> {
    Ok(GroupsReply { groups: index.groups().await.map_err(unavailable)? })
}

/// Live workers with the current state of their workspaces: heartbeats are some seconds old, the
/// index follows every event.
pub(crate) async fn workers(bus: &Bus, index: &Index) -> Result<Vec<WorkerView>, ApiError> {
    let mut views = live_workers(index, bus.now()).await?;
    let reported: Vec<BuildKey> =
        views.iter().flat_map(|view| &view.heartbeat.workspaces).filter_map(build_of).collect();
    let unfinished = index.unfinished_of(&reported).await.map_err(unavailable)?;
    let unfinished: HashSet<BuildKey> = unfinished.into_iter().collect();
    let reported: HashSet<BuildKey> = reported.into_iter().collect();
    let mut taken = index.taken().await.map_err(unavailable)?;
    // Builds that started since the heartbeats.
    let mut started = index.running(RUNNING_MAX).await.map_err(unavailable)?;
    started.retain(|key| !reported.contains(key));
    for (_, record) in bus.records().latest_many(&started).await.map_err(unavailable)? {
        if let (State::InProgress, Some(run)) = (record.state(), record.invocation()) {
            taken.insert(Workspace { worker: run.worker.clone(), slot: run.workspace }, record.build.key());
        }
    }
    for WorkerView { heartbeat } in &mut views {
        let worker = heartbeat.worker.clone();
        for (state, slot) in heartbeat.workspaces.iter_mut().zip(0_u16..) {
            let build = taken.get(&Workspace { worker: worker.clone(), slot });
            *state = current_state(state, build, &unfinished);
        }
    }
    views.sort_by(|a, b| a.heartbeat.worker.cmp(&b.heartbeat.worker));
    Ok(views)
}

/// Live workers, as of their last heartbeats.
pub(crate) async fn live_workers(index: &Index, now: Millis) -> Result<Vec<WorkerView>, ApiError> {
    let found = index.workers(now).await.map_err(unavailable)?;
    let read = |raw: &Vec<u8>| {
        Heartbeat::from_json(raw)
            .inspect_err(|error| {
                debug!(error = telemetry::error_chain(error), "ignoring an unreadable heartbeat");
            })
            .ok()
    };
    Ok(found.iter().filter_map(read).map(|heartbeat| WorkerView { heartbeat }).collect())
}

/// The build that the worker reported for this workspace.
fn build_of(state: &WorkspaceState) -> Option<BuildKey> {
    match state {
        WorkspaceState::Busy { group, id } => Some(BuildKey { group: group.clone(), id: *id }),
        WorkspaceState::Idle { .. } | WorkspaceState::Closed { .. } | WorkspaceState::Broken => None,
    }
}

/// The current state of a workspace that was in `state` and has this `build` according to the index; `unfinished` are
/// the reported builds that have not ended.
fn current_state(
    state: &WorkspaceState,
    build: Option<&BuildKey>,
    unfinished: &HashSet<BuildKey>,
) -> WorkspaceState {
    match (state, build) {
        (WorkspaceState::Broken, _) => WorkspaceState::Broken,
        (_, Some(build)) => WorkspaceState::Busy { group: build.group.clone(), id: build.id },
        (WorkspaceState::Busy { .. }, None)
            if build_of(state).is_some_and(|reported| !unfinished.contains(&reported)) =>
        {
            WorkspaceState::Idle { warm: None }
        }
        (WorkspaceState::Busy { .. } | WorkspaceState::Idle { .. } | WorkspaceState::Closed { .. }, None) => {
            state.clone()
        }
    }
}
