//! Handlers for what only the archive knows: runs of builds, actions that builds sent, histories.

use axum::{Json, extract::State as FromState};
use model::{
    ActionsReply, ActionsRequest, ArchiveStatus, Attempt, HistoryOf, HistoryReply, HistoryRequest,
    InvocationReply, InvocationsReply,
};

use crate::{
    failure::Failure,
    gateway::Gateway,
    input::{PathParameters, QueryParameters},
};

/// Handles `GET /v1/invocations/{id}`: shows one run and its build.
pub(crate) async fn invocation(
    FromState(gateway): FromState<Gateway>,
    names: PathParameters,
    query: QueryParameters,
) -> Result<Json<InvocationReply>, Failure> {
    query.reject_unknown(&[])?;
    Ok(Json(gateway.client.invocation(names.invocation()?).await?))
}

/// Handles `GET /v1/builds/{group}/{id}/invocations`: lists the runs of a build.
pub(crate) async fn invocations(
    FromState(gateway): FromState<Gateway>,
    names: PathParameters,
    query: QueryParameters,
) -> Result<Json<InvocationsReply>, Failure> {
    query.reject_unknown(&[])?;
    Ok(Json(gateway.client.invocations(&names.key()?).await?))
}

/// Handles `GET /v1/builds/{group}/{id}/actions`: lists the actions that a build sent.
pub(crate) async fn actions(
    FromState(gateway): FromState<Gateway>,
    names: PathParameters,
    query: QueryParameters,
) -> Result<Json<ActionsReply>, Failure> {
    query.reject_unknown(&["attempt", "cursor", "limit"])?;
    let key = names.key()?;
    let request = ActionsRequest {
        group: Some(key.group),
        build: Some(key.id),
        attempt: query.number("attempt")?.map(Attempt),
        tool_invocation: None,
        cursor: query.all("cursor").last().map(ToOwned::to_owned),
        limit: query.number("limit")?,
    };
    Ok(Json(gateway.client.actions(&request).await?))
}

/// Handles `GET /v1/history`: figures of past runs by day.
pub(crate) async fn history(
    FromState(gateway): FromState<Gateway>,
    query: QueryParameters,
) -> Result<Json<HistoryReply>, Failure> {
    query.reject_unknown(&["label", "command", "task", "group", "days"])?;
    let last = |name| query.all(name).last().map(ToOwned::to_owned);
    let of = match (last("label"), last("command"), last("task")) {
        (Some(label), None, None) => HistoryOf::Label(label),
        (None, Some(command), None) => HistoryOf::Command(command),
        (None, None, Some(task)) => HistoryOf::Task(task),
        _ => return Err(Failure::invalid("expected one of label, command and task")),
    };
    let group = last("group").map(|group| group.parse()).transpose();
    let group = group.map_err(|error: model::ParseIdError| Failure::invalid(error.to_string()))?;
    let request = HistoryRequest { group, of, days: query.number("days")? };
    Ok(Json(gateway.client.history(&request).await?))
}

/// Handles `GET /v1/archive`: how far the archive has read.
pub(crate) async fn status(
    FromState(gateway): FromState<Gateway>,
    query: QueryParameters,
) -> Result<Json<ArchiveStatus>, Failure> {
    query.reject_unknown(&[])?;
    Ok(Json(gateway.client.archive_status().await?))
}
