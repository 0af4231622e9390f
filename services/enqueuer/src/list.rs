//! Lists: from the index, each build's record from the stream.

use bus::Bus;
use index::Index;
use model::{
    ApiError, BuildId, BuildKey, BuildView, ErrorCode, Group, GroupsReply, Heartbeat, ListReply, ListRequest,
    State, WorkerView,
};

use crate::failure::unavailable;

/// Bytes of a list: a reply is one message of at most 1 MiB.
const LIST_BYTES_MAX: usize = 900 << 10;
const LIMIT: usize = 50;
const LIMIT_MAX: usize = 1000;

/// The newest builds of `group`; those that wait, in the order in which they will start.
pub(crate) async fn list(
    bus: &Bus,
    index: &Index,
    group: &Group,
    request: &ListRequest,
) -> Result<ListReply, ApiError> {
    let limit = request.limit.unwrap_or(LIMIT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        let why = format!("field limit is {limit}: 1 to {LIMIT_MAX} is expected");
        return Err(ApiError::new(ErrorCode::InvalidRequest, why));
    }
    let most = isize::try_from(limit).unwrap_or(isize::MAX);
    let ids: Vec<BuildId> = match request.state {
        None => index.recent(group, most).await,
        Some(State::Enqueued) => index.waiting(group, most).await,
        // Filtered below, so more are read than asked for.
        Some(State::InProgress | State::Finished) => {
            index.recent(group, isize::try_from(LIMIT_MAX).unwrap_or(1000)).await
        }
    }
    .map_err(unavailable)?;
    let keys: Vec<BuildKey> = ids.iter().map(|id| BuildKey { group: group.clone(), id: *id }).collect();
    let mut found: std::collections::HashMap<BuildId, BuildView> = bus
        .latest_many(&keys)
        .await
        .map_err(unavailable)?
        .into_iter()
        .map(|(sequence, record)| (record.build.id, BuildView::new(sequence, record)))
        .collect();
    let wanted = |view: &BuildView| request.state.is_none_or(|state| view.state == state);
    let mut builds = Vec::new();
    let mut room = LIST_BYTES_MAX;
    for view in ids.iter().filter_map(|id| found.remove(id)).filter(wanted).take(limit) {
        let size = bus::encode(bus::Encoding::Json, &view).len();
        if size > room {
            return Ok(ListReply { builds, truncated: true });
        }
        room -= size;
        builds.push(view);
    }
    Ok(ListReply { builds, truncated: false })
}

/// Groups that had a build lately.
pub(crate) async fn groups(index: &Index) -> Result<GroupsReply, ApiError> {
    Ok(GroupsReply { groups: index.groups().await.map_err(unavailable)? })
}

/// Workers that live.
pub(crate) async fn workers(bus: &Bus, index: &Index) -> Result<Vec<WorkerView>, ApiError> {
    let found = index.workers(bus.now()).await.map_err(unavailable)?;
    let read = |raw: &Vec<u8>| bus::decode::<Heartbeat>(bus::Encoding::Json, raw).ok();
    let mut views: Vec<WorkerView> =
        found.iter().filter_map(read).map(|heartbeat| WorkerView { heartbeat }).collect();
    views.sort_by(|a, b| a.heartbeat.worker.cmp(&b.heartbeat.worker));
    Ok(views)
}
