//! Handlers for the farm as a whole: groups, workers, quotas, metrics and health.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Extension as FromExtensions, State as FromState},
    http::{StatusCode, header},
    response::IntoResponse,
};
use callers::Caller;
use model::{
    AuditKind, ExecutorHeartbeat, GovernorRecord, GroupsReply, Millis, PurgeReply, PurgeRequest, QuotaReply,
    WorkerView,
};
use policy::purge::Purge;
use telemetry::metrics;

use crate::{failure::Failure, input, input::QueryParameters, state::Api};

/// Default number of decisions in a reply.
const DECISIONS: u64 = 120;

/// Handles `GET /v1/groups`: lists the quota groups.
pub(crate) async fn groups(FromState(api): FromState<Api>) -> Result<Json<GroupsReply>, Failure> {
    Ok(Json(GroupsReply { groups: api.client.groups().await? }))
}

/// Handles `GET /v1/workers`: lists the live workers.
pub(crate) async fn workers(FromState(api): FromState<Api>) -> Result<Json<Vec<WorkerView>>, Failure> {
    Ok(Json(api.client.workers().await?))
}

/// Handles `GET /v1/executors`: lists the live executors.
pub(crate) async fn executors(
    FromState(api): FromState<Api>,
) -> Result<Json<Vec<ExecutorHeartbeat>>, Failure> {
    Ok(Json(api.client.bus().leases().executors().await?))
}

/// Handles `GET /v1/quota`: returns the quotas.
pub(crate) async fn quota(FromState(api): FromState<Api>) -> Result<Json<QuotaReply>, Failure> {
    Ok(Json(api.client.quota().await?))
}

/// Handles `GET /v1/quota/decisions`: returns the governor's decisions over time.
pub(crate) async fn decisions(
    FromState(api): FromState<Api>,
    query: QueryParameters,
) -> Result<Json<Vec<GovernorRecord>>, Failure> {
    let since = query.number("since_ms")?.unwrap_or_default();
    let points = query.number("points")?.unwrap_or(DECISIONS);
    Ok(Json(api.client.bus().decisions(Millis(since), points).await?))
}

/// Handles `POST /v1/action-cache/purge`: deletes results of actions.
pub(crate) async fn purge(
    FromState(api): FromState<Api>,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    body: Body,
) -> Result<Json<PurgeReply>, Failure> {
    let body = input::read(body, api.request_bytes_max).await?;
    let asked: PurgeRequest = serde_json::from_slice(&body)
        .map_err(|error| Failure::invalid(format!("the request body: {error}")))?;
    let mut purge = Purge::new(asked.clone()).map_err(|error| Failure::invalid(error.to_string()))?;
    let removed = api.cas.purge_actions(|provenance| purge.deletes(provenance)).await?;
    let (conditions, reply) = (purge.to_string(), purge.reply(removed));
    if !asked.dry_run {
        caller.did(AuditKind::Purge, conditions, Some(&format!("deleted {}", reply.deleted)));
    }
    tracing::info!(caller = caller.name, ?asked, deleted = reply.deleted, "purged the action cache");
    Ok(Json(reply))
}

/// Handles `GET /metrics`: returns the metrics of this process.
pub(crate) async fn metrics() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], telemetry::scrape().await)
}

/// Handles `GET /healthz`: returns 503 while the process is stopping or has no connection to nats-server.
pub(crate) async fn health(FromState(api): FromState<Api>) -> (StatusCode, &'static str) {
    if api.stop.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping")
    } else if api.client.bus().is_connected() {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no connection to nats-server")
    }
}
