//! The routes of HTTP requests to their handlers.

use axum::{
    Router,
    http::StatusCode,
    middleware,
    routing::{get, post},
};

use crate::{archived, builds, events, failure::Failure, farm, files, gateway::Gateway, log, measure};

pub(crate) fn router(gateway: Gateway) -> Router {
    Router::new()
        .route("/v1/builds", get(builds::list_all))
        .route("/v1/builds/{group}", get(builds::list).post(builds::create))
        .route("/v1/builds/{group}/{id}", get(builds::show))
        .route("/v1/builds/{group}/{id}/cancel", post(builds::cancel))
        .route("/v1/builds/{group}/{id}/why", get(builds::why))
        .route("/v1/builds/{group}/{id}/events", get(events::stream))
        .route("/v1/builds/{group}/{id}/log", get(log::show))
        .route("/v1/builds/{group}/{id}/outputs/{*path}", get(files::output))
        .route("/v1/builds/{group}/{id}/invocations", get(archived::invocations))
        .route("/v1/builds/{group}/{id}/actions", get(archived::actions))
        .route("/v1/invocations/{id}", get(archived::invocation))
        .route("/v1/tool_invocations", get(archived::tool_invocations))
        .route("/v1/tool_invocations/{group}/{id}/targets", get(archived::targets))
        .route("/v1/tool_invocations/{group}/{id}/tests", get(archived::tests))
        .route("/v1/history", get(archived::history))
        .route("/v1/report", get(archived::report))
        .route("/v1/archive", get(archived::status))
        .route("/v1/blobs/{digest}", get(files::blob))
        .route("/v1/groups", get(farm::groups))
        .route("/v1/workers", get(farm::workers))
        .route("/v1/quota", get(farm::quota))
        .route("/metrics", get(farm::metrics))
        .route("/healthz", get(farm::health))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn(measure::measure))
        .with_state(gateway)
}

async fn unknown() -> Failure {
    Failure::missing("no resource at this path; builds are at /v1/builds")
}

async fn wrong_method() -> Failure {
    Failure::invalid("method not allowed at this path").with_status(StatusCode::METHOD_NOT_ALLOWED)
}
