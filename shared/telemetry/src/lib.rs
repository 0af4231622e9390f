//! Logs, traces and metrics of every Forebay process.
//!
//! [`init`] sets up logging to stderr and, when an OTLP endpoint is configured, the export of spans. [`metrics`]
//! counts; [`metrics_routes`] serve the counts and the readiness of the process over HTTP.
//!
//! With tracing off there is no OpenTelemetry layer at all. An `info_span!` then costs only what the log layer needs
//! to name it in log lines; a `debug_span!` costs one atomic load, and is still exported when tracing is on. Spans on
//! a hot path should therefore be `debug_span!`.

mod context;
mod error;
mod escape;
mod guard;
mod http;
mod log;
pub mod metrics;
mod otlp;
mod record;
mod settings;

pub use context::{TraceContext, context_of, current, is_valid_traceparent, set_parent};
pub use error::error_chain;
pub use escape::escaped;
pub use guard::{Guard, init, init_with, trace_enabled};
pub use http::{metrics_routes, ready_when, set_ready};
pub use log::LogFormat;
pub use record::{record_parent_span, record_span};
pub use settings::{Settings, Traces};
