//! Handlers for environments: list, propose, approve and remove.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Extension as FromExtensions, State as FromState},
    http::HeaderMap,
};
use callers::Caller;
use model::{
    AuditKind, ChangeEnvironmentRequest, Environment, EnvironmentName, EnvironmentsReply,
    ProposeEnvironmentRequest,
};
use policy::access::{Need, Right, Rights};

use crate::{failure::Failure, input, state::Api};

/// Handles `GET /v1/environments`: lists the environments that the farm has stored.
pub(crate) async fn list(
    FromState(api): FromState<Api>,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
) -> Result<Json<EnvironmentsReply>, Failure> {
    let mut environments = api.client.environments().await?;
    environments.retain(|environment| may_see(&caller.rights, &environment.name));
    Ok(Json(EnvironmentsReply { environments }))
}

/// Whether rights suffice to see an environment: those of a group are for who may read the group.
pub fn may_see(rights: &Rights, name: &EnvironmentName) -> bool {
    name.group().is_none_or(|group| rights.check(Need::In(Right::Read, group)).is_ok())
}

/// Checks that a caller may change an environment: one without a group is for all groups.
fn check(caller: &Caller, right: Right, name: &EnvironmentName) -> Result<(), Failure> {
    let need = name.group().map_or(Need::InAll(right), |group| Need::In(right, group));
    Ok(caller.check(need)?)
}

/// Who changes an environment: the caller, if the farm knows it, whatever the request says.
fn name_of(caller: &Caller, stated: Option<String>) -> Option<String> {
    caller.submitter().map(str::to_owned).or(stated)
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
    check(&caller, Right::Submit, &name)?;
    let by = name_of(&caller, by);
    let (environment, number) = api.client.propose_environment(&name, definition, by).await?;
    caller.did(AuditKind::Environment, format!("{name}@{number}"), Some("proposed"));
    Ok(Json(environment))
}

/// Lets the farm make a version of an environment, without a number the last one. `by` says who asks, where callers are unknown.
///
/// # Errors
///
/// Fails if the caller may not approve it.
pub async fn approve(
    api: &Api,
    caller: &Caller,
    name: &EnvironmentName,
    version: Option<u32>,
    by: Option<String>,
) -> Result<Environment, Failure> {
    check(caller, Right::Operate, name)?;
    let (environment, number) = api.client.approve_environment(name, version, name_of(caller, by)).await?;
    caller.did(AuditKind::Environment, format!("{name}@{number}"), Some("approved"));
    Ok(environment)
}

/// Handles `POST /v1/environments/approve`: lets the farm make a version.
pub(crate) async fn approve_asked(
    FromState(api): FromState<Api>,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Environment>, Failure> {
    let ChangeEnvironmentRequest { name, version, by } = change(&api, &headers, body).await?;
    Ok(Json(approve(&api, &caller, &name, version, by).await?))
}

/// Handles `POST /v1/environments/remove`: removes a version, or all.
pub(crate) async fn remove(
    FromState(api): FromState<Api>,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Environment>, Failure> {
    let ChangeEnvironmentRequest { name, version, .. } = change(&api, &headers, body).await?;
    check(&caller, Right::Operate, &name)?;
    let left = api.client.remove_environment(&name, version).await?;
    let target = version.map_or_else(|| name.to_string(), |number| format!("{name}@{number}"));
    caller.did(AuditKind::Environment, target, Some("removed"));
    Ok(Json(left))
}

async fn change(api: &Api, headers: &HeaderMap, body: Body) -> Result<ChangeEnvironmentRequest, Failure> {
    let body = input::read(body, api.request_bytes_max).await?;
    input::decode(headers, &body)
}
