//! Counts and times requests by route.

use std::time::Instant;

use axum::{
    extract::{MatchedPath, Request},
    middleware::Next,
    response::Response,
};
use telemetry::metrics::{Counter, Histogram, Label, count, observe};

/// Counts a request; the time is that until the head of the answer.
pub(crate) async fn measure(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let path = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    // Unknown paths are the clients' invention: they must not become labels.
    let endpoint = path.as_ref().map_or("unknown", MatchedPath::as_str);
    count(
        Counter::ApiRequests,
        &[(Label::Endpoint, endpoint), (Label::Status, response.status().as_str())],
        1,
    );
    observe(Histogram::ApiSeconds, &[(Label::Endpoint, endpoint)], began.elapsed());
    response
}
