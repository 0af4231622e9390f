//! Questions to the archive, about expired builds.

use std::time::Duration;

use bus::{ArchiveCall, AskError, Bus, Message, Subject};
use bytes::Bytes;
use model::{
    ApiError, ArchivedBuildRequest, ArchivedBuildsRequest, BuildKey, BuildView, ErrorCode, Group, ListReply,
    ListRequest,
};
use policy::listing;
use tokio::time::timeout;

use crate::failure::unavailable;

/// Time limit of a question, below that of a call of the API.
const PATIENCE: Duration = Duration::from_secs(3);
const LIMIT: usize = 50;
/// What an operator can do if a call needs an archive.
const NO_ARCHIVE: &str = "no archive is running: start one with `forebay serve archive`";

/// The build in the archive. The error says if there may be one, but no archive runs.
pub(crate) async fn build(bus: &Bus, key: &BuildKey) -> Result<BuildView, ApiError> {
    let request = ArchivedBuildRequest { group: key.group.clone(), id: key.id };
    if let Some(view) = ask(bus, ArchiveCall::Get, request.to_json()).await? {
        return Ok(view);
    }
    let why = format!("build {} not found in group {} on the bus; {NO_ARCHIVE}", key.id, key.group);
    Err(ApiError::new(ErrorCode::NotFound, why))
}

/// A page of archived builds of a group, or of all, for a request that only an archive can answer.
pub(crate) async fn page(
    bus: &Bus,
    group: Option<&Group>,
    list: &ListRequest,
) -> Result<ListReply, ApiError> {
    let unanswered = || {
        let why = format!(
            "priority, submitter, times, requirements, text and cursor need an archive; {NO_ARCHIVE}"
        );
        ApiError::new(ErrorCode::Unavailable, why)
    };
    try_page(bus, group, list.clone()).await?.ok_or_else(unanswered)
}

/// Completes the builds of a group, or of all, in the index by older ones of the archive, if one answers.
pub(crate) async fn complete(
    bus: &Bus,
    group: Option<&Group>,
    request: &ListRequest,
    live: ListReply,
) -> Result<ListReply, ApiError> {
    let limit = request.limit.unwrap_or(LIMIT);
    let Some(mut archived) = try_page(bus, group, request.clone()).await.unwrap_or(None) else {
        return Ok(live);
    };
    if archived.builds.is_empty() {
        return Ok(live);
    }
    let newer = listing::not_archived(&live.builds, &archived);
    let left = limit.saturating_sub(newer.len());
    if !newer.is_empty() && left > 0 {
        let rest = ListRequest { limit: Some(left), ..request.clone() };
        match try_page(bus, group, rest).await? {
            Some(page) => archived = page,
            None => return Ok(live),
        }
    }
    Ok(listing::with_archived(newer, archived, &live.builds, limit))
}

async fn try_page(
    bus: &Bus,
    group: Option<&Group>,
    list: ListRequest,
) -> Result<Option<ListReply>, ApiError> {
    let request = ArchivedBuildsRequest { group: group.cloned(), list };
    ask(bus, ArchiveCall::List, request.to_json()).await
}

/// The answer of an archive; none if no archive runs.
async fn ask<A: Message>(bus: &Bus, call: ArchiveCall, question: Bytes) -> Result<Option<A>, ApiError> {
    let silent = || ApiError::new(ErrorCode::Unavailable, "the archive does not answer");
    let subject = Subject::Archive(call);
    match timeout(PATIENCE, bus.ask(&subject, None, question)).await.map_err(|_| silent())? {
        Ok(answer) => A::from_json(&answer).map(Some).map_err(unavailable),
        Err(AskError::NobodyListens { .. }) => Ok(None),
        Err(AskError::Refused(error)) => Err(error),
        Err(error @ (AskError::Denied(_) | AskError::Doubtful { .. } | AskError::TooLarge { .. })) => {
            Err(unavailable(error))
        }
    }
}
