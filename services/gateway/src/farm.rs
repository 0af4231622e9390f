//! Questions about the farm as a whole.

use async_nats::connection::State;
use axum::{
    Json,
    extract::State as FromState,
    http::{StatusCode, header},
    response::IntoResponse,
};
use model::{GroupsReply, QuotaReply, WorkerView};
use telemetry::metrics;

use crate::{failure::Failure, input::Pairs, routes::Gateway};

/// `GET /v1/groups`
pub(crate) async fn groups(
    FromState(gateway): FromState<Gateway>,
    pairs: Pairs,
) -> Result<Json<GroupsReply>, Failure> {
    pairs.only(&[])?;
    Ok(Json(GroupsReply { groups: gateway.client.groups().await? }))
}

/// `GET /v1/workers`
pub(crate) async fn workers(
    FromState(gateway): FromState<Gateway>,
    pairs: Pairs,
) -> Result<Json<Vec<WorkerView>>, Failure> {
    pairs.only(&[])?;
    Ok(Json(gateway.client.workers().await?))
}

/// `GET /v1/quota`
pub(crate) async fn quota(
    FromState(gateway): FromState<Gateway>,
    pairs: Pairs,
) -> Result<Json<QuotaReply>, Failure> {
    pairs.only(&[])?;
    Ok(Json(gateway.client.quota().await?))
}

/// `GET /metrics`
pub(crate) async fn metrics() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::render())
}

/// `GET /healthz`: whether requests can be answered now.
pub(crate) async fn health(FromState(gateway): FromState<Gateway>) -> (StatusCode, &'static str) {
    match gateway.client.bus().client().connection_state() {
        _ if gateway.stop.is_cancelled() => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        State::Connected => (StatusCode::OK, "ok"),
        State::Pending | State::Disconnected => {
            (StatusCode::SERVICE_UNAVAILABLE, "no connection to nats-server")
        }
    }
}
