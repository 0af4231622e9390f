//! Common parts of all services: start, wait, become ready, drain, and (in tests) die at a chosen step.

mod bound;
mod clock;
mod context;
mod crash;
mod disk_metrics;
mod environments;
mod error;
mod governance;
mod heartbeats;
mod identity;
mod metrics_server;
mod offers;
mod other_store;
mod subscription;
mod timer;
mod traces;
mod usage_reports;

pub use bound::Bound;
pub use context::{Context, Ready, Running, open_cas};
pub use crash::{Step, crash_point};
pub use disk_metrics::report_disk;
pub use environments::{EnvironmentError, Environments};
pub use error::{ServiceError, StartError};
pub use governance::{Current, Governance, follow_governance};
pub use heartbeats::{
    HeartbeatSource, Heartbeats, heartbeat_ttl_ms, request_heartbeats, send_final_heartbeat, send_heartbeat,
    serve_heartbeats,
};
pub use identity::{host_name, join_store};
pub use offers::offers;
pub use other_store::OtherStore;
pub use subscription::Subscription;
pub use timer::sleep_until;
pub use traces::{trace_copy_ended, trace_execution_ended, trace_run_ended};
pub use usage_reports::{USAGE_REPORT_INTERVAL, UsageSource, report_usage};
