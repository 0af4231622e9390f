//! Handlers for the farm as a whole: groups, workers, quotas, metrics and health.

use axum::{
    Json,
    extract::State as FromState,
    http::{StatusCode, header},
    response::IntoResponse,
};
use model::{GroupsReply, QuotaReply, WorkerView};
use telemetry::metrics;

use crate::{failure::Failure, gateway::Gateway};

/// Handles `GET /v1/groups`: lists the quota groups.
pub(crate) async fn groups(FromState(gateway): FromState<Gateway>) -> Result<Json<GroupsReply>, Failure> {
    Ok(Json(GroupsReply { groups: gateway.client.groups().await? }))
}

/// Handles `GET /v1/workers`: lists the live workers.
pub(crate) async fn workers(
    FromState(gateway): FromState<Gateway>,
) -> Result<Json<Vec<WorkerView>>, Failure> {
    Ok(Json(gateway.client.workers().await?))
}

/// Handles `GET /v1/quota`: returns the quotas.
pub(crate) async fn quota(FromState(gateway): FromState<Gateway>) -> Result<Json<QuotaReply>, Failure> {
    Ok(Json(gateway.client.quota().await?))
}

/// Handles `GET /metrics`: returns the metrics of this process.
pub(crate) async fn metrics() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], telemetry::scrape().await)
}

/// Handles `GET /healthz`: returns 503 while the gateway is stopping or has no connection to nats-server.
pub(crate) async fn health(FromState(gateway): FromState<Gateway>) -> (StatusCode, &'static str) {
    if gateway.stop.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping")
    } else if gateway.client.bus().is_connected() {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no connection to nats-server")
    }
}
