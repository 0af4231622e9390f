//! The OpenAPI document of the HTTP API, as a reply.

use axum::{body::Bytes, extract::State as FromState, http::header, response::IntoResponse};

use crate::state::Api;

/// Handles `GET /v1/openapi.json`: returns the document, which is made on the first call.
pub(crate) async fn show(FromState(api): FromState<Api>) -> impl IntoResponse {
    let document: Bytes = (*api.openapi).clone();
    ([(header::CONTENT_TYPE, "application/json")], document)
}
