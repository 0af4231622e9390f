//! Handlers for environments: list, propose, approve and remove.

use axum::{Json, body::Body, extract::State as FromState, http::HeaderMap};
use model::{ChangeEnvironmentRequest, Environment, EnvironmentsReply, ProposeEnvironmentRequest};

use crate::{failure::Failure, input, state::Api};

/// Handles `GET /v1/environments`: lists the environments that the farm has stored.
pub(crate) async fn list(FromState(api): FromState<Api>) -> Result<Json<EnvironmentsReply>, Failure> {
    Ok(Json(EnvironmentsReply { environments: api.client.environments().await? }))
}

/// Handles `POST /v1/environments`: adds a version, which waits for approval.
pub(crate) async fn propose(
    FromState(api): FromState<Api>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Environment>, Failure> {
    let body = input::read(body, api.request_bytes_max).await?;
    let ProposeEnvironmentRequest { name, definition, by } = input::decode(&headers, &body)?;
    Ok(Json(api.client.propose_environment(&name, definition, by).await?.0))
}

/// Handles `POST /v1/environments/approve`: lets the farm make a version.
pub(crate) async fn approve(
    FromState(api): FromState<Api>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Environment>, Failure> {
    let ChangeEnvironmentRequest { name, version, by } = change(&api, &headers, body).await?;
    Ok(Json(api.client.approve_environment(&name, version, by).await?.0))
}

/// Handles `POST /v1/environments/remove`: removes a version, or all.
pub(crate) async fn remove(
    FromState(api): FromState<Api>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Environment>, Failure> {
    let ChangeEnvironmentRequest { name, version, .. } = change(&api, &headers, body).await?;
    Ok(Json(api.client.remove_environment(&name, version).await?))
}

async fn change(api: &Api, headers: &HeaderMap, body: Body) -> Result<ChangeEnvironmentRequest, Failure> {
    let body = input::read(body, api.request_bytes_max).await?;
    input::decode(headers, &body)
}
