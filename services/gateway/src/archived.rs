//! Handlers for what only the archive knows: runs of builds, actions that builds sent, calls of build tools, histories.

use axum::{Json, extract::State as FromState};
use model::{
    ActionsReply, ActionsRequest, ArchiveStatus, Attempt, HistoryOf, HistoryReply, HistoryRequest,
    InvocationReply, InvocationsReply, Millis, ReportReply, ReportRequest, TargetsReply, TargetsRequest,
    TestsReply, TestsRequest, ToolInvocationsReply, ToolInvocationsRequest,
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
) -> Result<Json<InvocationReply>, Failure> {
    Ok(Json(gateway.client.invocation(names.invocation()?).await?))
}

/// Handles `GET /v1/builds/{group}/{id}/invocations`: lists the runs of a build.
pub(crate) async fn invocations(
    FromState(gateway): FromState<Gateway>,
    names: PathParameters,
) -> Result<Json<InvocationsReply>, Failure> {
    Ok(Json(gateway.client.invocations(&names.key()?).await?))
}

/// Handles `GET /v1/builds/{group}/{id}/actions`: lists the actions that a build sent.
pub(crate) async fn actions(
    FromState(gateway): FromState<Gateway>,
    names: PathParameters,
    query: QueryParameters,
) -> Result<Json<ActionsReply>, Failure> {
    let key = names.key()?;
    let request = ActionsRequest {
        group: Some(key.group),
        build: Some(key.id),
        attempt: query.number("attempt")?.map(Attempt),
        tool_invocation: None,
        cursor: query.last("cursor"),
        limit: query.number("limit")?,
    };
    Ok(Json(gateway.client.actions(&request).await?))
}

/// Handles `GET /v1/tool_invocations`: lists calls of build tools that published their events.
pub(crate) async fn tool_invocations(
    FromState(gateway): FromState<Gateway>,
    query: QueryParameters,
) -> Result<Json<ToolInvocationsReply>, Failure> {
    let request = ToolInvocationsRequest {
        group: query.parsed("group")?,
        build: query.parsed("build")?,
        id: query.parsed("id")?,
        cursor: query.last("cursor"),
        limit: query.number("limit")?,
    };
    Ok(Json(gateway.client.tool_invocations(&request).await?))
}

/// Handles `GET /v1/tool_invocations/{group}/{id}/targets`: lists the targets of a call.
pub(crate) async fn targets(
    FromState(gateway): FromState<Gateway>,
    names: PathParameters,
    query: QueryParameters,
) -> Result<Json<TargetsReply>, Failure> {
    let request = TargetsRequest {
        group: names.group()?,
        id: names.tool_invocation()?,
        status: query.last("status"),
        cursor: query.last("cursor"),
        limit: query.number("limit")?,
    };
    Ok(Json(gateway.client.targets(&request).await?))
}

/// Handles `GET /v1/tool_invocations/{group}/{id}/tests`: lists the attempts of the tests of a call.
pub(crate) async fn tests(
    FromState(gateway): FromState<Gateway>,
    names: PathParameters,
    query: QueryParameters,
) -> Result<Json<TestsReply>, Failure> {
    let request = TestsRequest {
        group: names.group()?,
        id: names.tool_invocation()?,
        status: query.last("status"),
        cursor: query.last("cursor"),
        limit: query.number("limit")?,
    };
    Ok(Json(gateway.client.tests(&request).await?))
}

/// Handles `GET /v1/history`: figures of past runs by day.
pub(crate) async fn history(
    FromState(gateway): FromState<Gateway>,
    query: QueryParameters,
) -> Result<Json<HistoryReply>, Failure> {
    let of = [
        query.last("label").map(HistoryOf::Label),
        query.last("command").map(HistoryOf::Command),
        query.last("task").map(HistoryOf::Task),
        query.last("test").map(HistoryOf::Test),
    ];
    let mut of = of.into_iter().flatten();
    let (Some(of), None) = (of.next(), of.next()) else {
        return Err(Failure::invalid("expected one of label, command, task and test"));
    };
    let request = HistoryRequest { group: query.parsed("group")?, of, days: query.number("days")? };
    Ok(Json(gateway.client.history(&request).await?))
}

/// Handles `GET /v1/report`: what builds of each priority cost.
pub(crate) async fn report(
    FromState(gateway): FromState<Gateway>,
    query: QueryParameters,
) -> Result<Json<ReportReply>, Failure> {
    let since_ms = Millis(query.number("since_ms")?.unwrap_or_default());
    let request = ReportRequest { since_ms, group: query.parsed("group")? };
    Ok(Json(gateway.client.report(&request).await?))
}

/// Handles `GET /v1/archive`: how far the archive has read.
pub(crate) async fn status(FromState(gateway): FromState<Gateway>) -> Result<Json<ArchiveStatus>, Failure> {
    Ok(Json(gateway.client.archive_status().await?))
}
