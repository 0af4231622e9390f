//! Handlers for what only the archive knows: runs of builds, actions that builds sent, calls of build tools, histories.

use axum::{Json, extract::State as FromState};
use model::{
    ActionsReply, ActionsRequest, ArchiveStatus, Attempt, AuditReply, AuditRequest, HistoryOf, HistoryReply,
    HistoryRequest, InvocationReply, InvocationsReply, Millis, ReportReply, ReportRequest, TargetsReply,
    TargetsRequest, TestGridReply, TestGridRequest, TestsReply, TestsRequest, ToolInvocationsReply,
    ToolInvocationsRequest,
};

use crate::{
    failure::Failure,
    input::{PathParameters, QueryParameters},
    state::Api,
};

/// Handles `GET /v1/invocations/{id}`: shows one run and its build.
pub(crate) async fn invocation(
    FromState(api): FromState<Api>,
    names: PathParameters,
) -> Result<Json<InvocationReply>, Failure> {
    Ok(Json(api.client.invocation(names.invocation()?).await?))
}

/// Handles `GET /v1/audit`: lists audit events.
pub(crate) async fn audit(
    FromState(api): FromState<Api>,
    query: QueryParameters,
) -> Result<Json<AuditReply>, Failure> {
    Ok(Json(api.client.audit(&audit_request(&query)?).await?))
}

/// The audit events that a query means.
///
/// # Errors
///
/// Fails if a parameter is invalid.
pub fn audit_request(query: &QueryParameters) -> Result<AuditRequest, Failure> {
    Ok(AuditRequest {
        who: query.last("who"),
        kind: query.parsed("kind")?,
        target: query.last("target"),
        since_ms: query.number("since_ms")?.map(Millis),
        cursor: query.last("cursor"),
        limit: query.number("limit")?,
    })
}

/// Handles `GET /v1/builds/{group}/{id}/invocations`: lists the runs of a build.
pub(crate) async fn invocations(
    FromState(api): FromState<Api>,
    names: PathParameters,
) -> Result<Json<InvocationsReply>, Failure> {
    Ok(Json(api.client.invocations(&names.key()?).await?))
}

/// Handles `GET /v1/builds/{group}/{id}/actions`: lists the actions that a build sent.
pub(crate) async fn actions(
    FromState(api): FromState<Api>,
    names: PathParameters,
    query: QueryParameters,
) -> Result<Json<ActionsReply>, Failure> {
    let key = names.key()?;
    let request = ActionsRequest {
        group: Some(key.group),
        build: Some(key.id),
        action: None,
        attempt: query.number("attempt")?.map(Attempt),
        tool_invocation: None,
        cursor: query.last("cursor"),
        limit: query.number("limit")?,
    };
    Ok(Json(api.client.actions(&request).await?))
}

/// Handles `GET /v1/tool_invocations`: lists calls of build tools that published their events.
pub(crate) async fn tool_invocations(
    FromState(api): FromState<Api>,
    query: QueryParameters,
) -> Result<Json<ToolInvocationsReply>, Failure> {
    let request = ToolInvocationsRequest {
        group: query.parsed("group")?,
        build: query.parsed("build")?,
        id: query.parsed("id")?,
        cursor: query.last("cursor"),
        limit: query.number("limit")?,
    };
    Ok(Json(api.client.tool_invocations(&request).await?))
}

/// Handles `GET /v1/tool_invocations/{group}/{id}/targets`: lists the targets of a call.
pub(crate) async fn targets(
    FromState(api): FromState<Api>,
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
    Ok(Json(api.client.targets(&request).await?))
}

/// Handles `GET /v1/tool_invocations/{group}/{id}/tests`: lists the attempts of the tests of a call.
pub(crate) async fn tests(
    FromState(api): FromState<Api>,
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
    Ok(Json(api.client.tests(&request).await?))
}

/// Handles `GET /v1/test_grid`: compares the results of tests in the last calls of build tools.
pub(crate) async fn test_grid(
    FromState(api): FromState<Api>,
    query: QueryParameters,
) -> Result<Json<TestGridReply>, Failure> {
    Ok(Json(api.client.test_grid(&test_grid_request(&query)?).await?))
}

/// The request that the query of a grid of tests means.
///
/// # Errors
///
/// Fails if a parameter is invalid.
pub fn test_grid_request(query: &QueryParameters) -> Result<TestGridRequest, Failure> {
    let (group, text) = (query.parsed("group")?, query.last("text"));
    Ok(TestGridRequest { group, text, calls: query.number("calls")? })
}

/// Handles `GET /v1/history`: figures of past runs by day.
pub(crate) async fn history(
    FromState(api): FromState<Api>,
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
    Ok(Json(api.client.history(&request).await?))
}

/// Handles `GET /v1/report`: what builds of each priority cost.
pub(crate) async fn report(
    FromState(api): FromState<Api>,
    query: QueryParameters,
) -> Result<Json<ReportReply>, Failure> {
    let since_ms = Millis(query.number("since_ms")?.unwrap_or_default());
    let request = ReportRequest { since_ms, group: query.parsed("group")? };
    Ok(Json(api.client.report(&request).await?))
}

/// Handles `GET /v1/archive`: how far the archive has read.
pub(crate) async fn status(FromState(api): FromState<Api>) -> Result<Json<ArchiveStatus>, Failure> {
    Ok(Json(api.client.archive_status().await?))
}
