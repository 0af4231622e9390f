//! HTTP routes `GET /metrics` and `GET /healthz`.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use parking_lot::Mutex;

use crate::{metrics, scrape};

type Check = Box<dyn Fn() -> Result<(), String> + Send>;

static READY: AtomicBool = AtomicBool::new(false);
static CHECKS: Mutex<Vec<Check>> = Mutex::new(Vec::new());

/// Sets whether this process is ready to work; initially it is not.
pub fn set_ready(ready: bool) {
    READY.store(ready, Ordering::Relaxed);
}

/// Adds a condition for readiness; its error is shown as the reason.
///
/// `check` runs on every `GET /healthz` and must not block.
pub fn ready_when(check: impl Fn() -> Result<(), String> + Send + 'static) {
    CHECKS.lock().push(Box::new(check));
}

/// Routes `/metrics` and `/healthz`.
pub fn metrics_routes() -> Router {
    Router::new().route("/metrics", get(show_metrics)).route("/healthz", get(show_health))
}

async fn show_metrics() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], scrape().await)
}

async fn show_health() -> (StatusCode, String) {
    match readiness() {
        Ok(()) => (StatusCode::OK, "ok".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason),
    }
}

fn readiness() -> Result<(), String> {
    if !READY.load(Ordering::Relaxed) {
        return Err("not ready".to_owned());
    }
    CHECKS.lock().iter().try_for_each(|check| check())
}
