//! Handlers for builds: create, show, explain, cancel and list.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Extension as FromExtensions, State as FromState},
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::IntoResponse,
};
use callers::Caller;
use client::Client;
use model::{
    AuditKind, BuildId, BuildKey, BuildRequest, BuildView, CancelBody, CancelReply, Group, ListReply,
    ListRequest, Millis, WhyReply,
};
use policy::access::{Need, Right};

use crate::{
    failure::Failure,
    input::{self, PathParameters, QueryParameters},
    state::Api,
};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Handles `POST /v1/builds/{group}`: creates a build.
pub(crate) async fn create(
    FromState(api): FromState<Api>,
    names: PathParameters,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    headers: HeaderMap,
    body: Body,
) -> Result<impl IntoResponse, Failure> {
    let group = names.group()?;
    let body = input::read(body, api.request_bytes_max).await?;
    let mut request = input::decode_build(&headers, &caller, body, api.request_bytes_max).await?;
    authorize_submit(&caller, &group, &mut request)?;
    // With an id, the request can be repeated on the bus without queueing the build twice.
    request.id.get_or_insert_with(BuildId::generate);
    let trace =
        input::header_text(&headers, TRACEPARENT).filter(|text| telemetry::spans::is_valid_traceparent(text));
    let reply = api.client.create(&group, &request, trace).await?;
    let status = if reply.duplicate { StatusCode::OK } else { StatusCode::CREATED };
    let location = format!("/v1/builds/{}/{}", reply.group, reply.id);
    Ok((status, [(header::LOCATION, location)], Json(reply)))
}

/// Handles `GET /v1/builds/{group}/{id}`: shows one build.
pub(crate) async fn show(
    FromState(api): FromState<Api>,
    names: PathParameters,
) -> Result<Json<BuildView>, Failure> {
    Ok(Json(api.client.get(&names.key()?).await?))
}

/// Handles `GET /v1/builds/{group}/{id}/why`: explains why a build waits.
pub(crate) async fn why(
    FromState(api): FromState<Api>,
    names: PathParameters,
) -> Result<Json<WhyReply>, Failure> {
    Ok(Json(api.client.why(&names.key()?).await?))
}

/// Handles `POST /v1/builds/{group}/{id}/cancel`: cancels a build.
pub(crate) async fn cancel(
    FromState(api): FromState<Api>,
    names: PathParameters,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<CancelReply>, Failure> {
    let key = names.key()?;
    authorize_cancel(&api.client, &caller, &key).await?;
    let body = input::read(body, api.request_bytes_max).await?;
    let CancelBody { reason } =
        if body.is_empty() { CancelBody::default() } else { input::decode(&headers, &body)? };
    let reply = api.client.cancel_as(&key, reason.clone(), caller.submitter()).await?;
    record_cancel(&caller, &reply, reason.as_deref());
    Ok(Json(reply))
}

/// Handles `GET /v1/builds/{group}`: lists the builds of one group.
pub(crate) async fn list(
    FromState(api): FromState<Api>,
    names: PathParameters,
    query: QueryParameters,
) -> Result<Json<ListReply>, Failure> {
    Ok(Json(api.client.builds(Some(&names.group()?), &list_request(&query)?).await?))
}

/// Handles `GET /v1/builds`: lists the builds of all groups.
pub(crate) async fn list_all(
    FromState(api): FromState<Api>,
    query: QueryParameters,
) -> Result<Json<ListReply>, Failure> {
    Ok(Json(api.client.builds(None, &list_request(&query)?).await?))
}

/// Records for operators that a caller cancelled a build, unless it had ended.
pub fn record_cancel(caller: &Caller, reply: &CancelReply, reason: Option<&str>) {
    if reply.cancelled {
        caller.did(AuditKind::Cancel, reply.build.record.build.key().to_string(), reason);
    }
}

/// Checks that a caller may queue a build, and names the caller as its submitter.
///
/// # Errors
///
/// Fails if the caller may not queue builds of this priority in the group, or queues too many.
pub fn authorize_submit(caller: &Caller, group: &Group, request: &mut BuildRequest) -> Result<(), Failure> {
    let checked = caller.rights.check_submit(group, request.priority.unwrap_or_default());
    checked.map_err(|denied| caller.refused(denied))?;
    caller.count_build()?;
    if let Some(name) = caller.submitter() {
        request.submitter = Some(name.to_owned());
    }
    Ok(())
}

/// Checks that a caller may cancel a build: one that it queued, or any with the right to that.
///
/// # Errors
///
/// Fails if it may not, or if there is no such build.
pub async fn authorize_cancel(client: &Client, caller: &Caller, key: &BuildKey) -> Result<(), Failure> {
    let Err(denied) = caller.rights.check(Need::In(Right::Cancel, &key.group)) else { return Ok(()) };
    // Before the build is read: others learn not even whether there is one.
    caller.check(Need::In(Right::Submit, &key.group))?;
    let view = client.get(key).await?;
    let is_own = caller.submitter().is_some_and(|name| view.record.build.submitter.as_deref() == Some(name));
    if is_own {
        return Ok(());
    }
    Err(caller.refused(denied).into())
}

/// The list that a query means.
///
/// # Errors
///
/// Fails if a parameter is invalid.
pub fn list_request(query: &QueryParameters) -> Result<ListRequest, Failure> {
    let pair = |what: &'static str| {
        move |text: &str| {
            let (name, value) = text
                .split_once('=')
                .ok_or_else(|| Failure::invalid(format!("invalid {what} {text:?}: expected NAME=VALUE")))?;
            Ok((name.to_owned(), value.to_owned()))
        }
    };
    let last = |name| query.all(name).last().map(ToOwned::to_owned);
    let priority = query.all("priority").last().map(str::parse).transpose();
    Ok(ListRequest {
        state: query.state()?,
        outcome: query.outcome()?,
        labels: query.all("label").map(pair("label")).collect::<Result<_, Failure>>()?,
        id_prefix: last("id_prefix"),
        limit: query.number("limit")?,
        priority: priority.map_err(|error: model::ParseIdError| Failure::invalid(error.to_string()))?,
        submitter: last("submitter"),
        since_ms: query.number("since_ms")?.map(Millis),
        until_ms: query.number("until_ms")?.map(Millis),
        requirements: query.all("requirement").map(pair("requirement")).collect::<Result<_, Failure>>()?,
        text: last("text"),
        cursor: last("cursor"),
    })
}
