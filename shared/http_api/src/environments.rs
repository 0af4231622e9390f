//! Handlers for environments: list, propose, approve and remove.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Extension as FromExtensions, State as FromState},
    http::HeaderMap,
};
use callers::Caller;
use model::{AuditKind, ChangeEnvironmentRequest, Environment, EnvironmentsReply, ProposeEnvironmentRequest};

use crate::{failure::Failure, input, state::Api};

/// Handles `GET /v1/environments`: lists the environments that the farm has stored.
pub(crate) async fn list(FromState(api): FromState<Api>) -> Result<Json<EnvironmentsReply>, Failure> {
    Ok(Json(EnvironmentsReply { environments: api.client.environments().await? }))
}

/// Handles `POST /v1/environments`: adds a version, which waits for approval.
pub(crate) async fn propose(
    FromState(api): FromState<Api>,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Environment>, Failure> {
    let body = input::read(body, api.request_bytes_max).await?;
    let ProposeEnvironmentRequest { name, definition, by } = input::decode(&headers, &body)?;
    let (environment, number) = api.client.propose_environment(&name, definition, by).await?;
    caller.did(AuditKind::Environment, format!("{name}@{number}"), Some("proposed"));
    Ok(Json(environment))
}

/// Handles `POST /v1/environments/approve`: lets the farm make a version.
pub(crate) async fn approve(
    FromState(api): FromState<Api>,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Environment>, Failure> {
    let ChangeEnvironmentRequest { name, version, by } = change(&api, &headers, body).await?;
    let (environment, number) = api.client.approve_environment(&name, version, by).await?;
    caller.did(AuditKind::Environment, format!("{name}@{number}"), Some("approved"));
    Ok(Json(environment))
}

/// Handles `POST /v1/environments/remove`: removes a version, or all.
pub(crate) async fn remove(
    FromState(api): FromState<Api>,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Environment>, Failure> {
    let ChangeEnvironmentRequest { name, version, .. } = change(&api, &headers, body).await?;
    let left = api.client.remove_environment(&name, version).await?;
    let target = version.map_or_else(|| name.to_string(), |number| format!("{name}@{number}"));
    caller.did(AuditKind::Environment, target, Some("removed"));
    Ok(Json(left))
}

async fn change(api: &Api, headers: &HeaderMap, body: Body) -> Result<ChangeEnvironmentRequest, Failure> {
    let body = input::read(body, api.request_bytes_max).await?;
    input::decode(headers, &body)
}
