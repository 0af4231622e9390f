//! The HTTP API, which gateways and the service `web` serve, and what its handlers share with the pages.
//!
//! It keeps no state of its own: calls go to the services over the bus, each event stream is a separate watch, and files
//! are streamed from the store.

mod access;
mod api;
mod archived;
mod builds;
mod connect;
mod environments;
mod events;
mod failure;
mod farm;
mod files;
mod form_token;
mod frames;
mod guard;
mod input;
mod log;
mod log_cache;
mod measure;
mod openapi;
mod origin;
mod registry;
mod routes;
mod server;
mod state;

pub use access::{PersonPages, RouteNeed, Routes};
pub use archived::{audit_request, test_grid_request};
pub use builds::{authorize_cancel, authorize_submit, list_request, record_cancel};
pub use environments::{approve as approve_environment, may_see as may_see_environment};
pub use failure::Failure;
pub use form_token::FORM_TOKEN_FIELD;
pub use frames::StoreBlobs;
pub use input::{PathParameters, QueryParameters, header_text};
pub use origin::{Cookie, WebOrigin};
pub use routes::router;
pub use server::HttpServer;
pub use state::Api;

/// The OpenAPI document of the HTTP API.
pub fn openapi() -> serde_json::Value {
    api::document(&api::all())
}
