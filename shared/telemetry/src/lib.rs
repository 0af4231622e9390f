//! Logs, traces and metrics of every Forebay process.
//!
//! [`init`] sets up logging to stderr and, when an OTLP endpoint is configured, the export of spans. [`metrics`]
//! counts; [`metrics_routes`] serve the counts and the readiness of the process over HTTP.
//!
//! [`spans`] are made when they end, with ids that their makers compute, so that no process holds a span open. With
//! tracing off, none are made.

mod error;
mod escape;
mod guard;
mod http;
mod log;
pub mod metrics;
mod sampler;
mod scrape;
mod settings;
pub mod spans;
mod trace_context;

pub use error::error_chain;
pub use escape::escaped;
pub use guard::{Guard, init, init_with};
pub use http::{metrics_routes, ready_when, set_ready};
pub use log::LogFormat;
pub use scrape::{on_scrape, scrape};
pub use settings::{Batches, Protocol, Settings, Traces};
