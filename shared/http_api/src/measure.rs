//! Counts and times requests by route.

use std::time::Instant;

use axum::{
    extract::{MatchedPath, Request},
    middleware::Next,
    response::Response,
};
use telemetry::metrics::{Counter, Histogram, Label, count, observe};

/// Counts a request and measures the time until the head of its response.
pub(crate) async fn measure(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let path = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    // Unknown paths must not become labels: clients could create any number of them.
    let endpoint = path.as_ref().map_or("unknown", MatchedPath::as_str);
    count(
        Counter::ApiRequests,
        &[(Label::Endpoint, endpoint), (Label::Status, response.status().as_str())],
        1,
    );
    observe(Histogram::ApiSeconds, &[(Label::Endpoint, endpoint)], began.elapsed());
    response
}
