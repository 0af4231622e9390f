//! Handlers for builds: create, show, explain, cancel and list.

use axum::{
    Json,
    body::Body,
    extract::State as FromState,
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::IntoResponse,
};
use model::{BuildId, BuildView, CancelBody, CancelReply, ListReply, ListRequest, Millis, WhyReply};

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
    headers: HeaderMap,
    body: Body,
) -> Result<impl IntoResponse, Failure> {
    let group = names.group()?;
    let body = input::read(body, api.request_bytes_max).await?;
    let mut request = input::decode_build(&headers, body, api.request_bytes_max).await?;
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
    headers: HeaderMap,
    body: Body,
) -> Result<Json<CancelReply>, Failure> {
    let key = names.key()?;
    let body = input::read(body, api.request_bytes_max).await?;
    let CancelBody { reason } =
        if body.is_empty() { CancelBody::default() } else { input::decode(&headers, &body)? };
    Ok(Json(api.client.cancel(&key, reason).await?))
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
