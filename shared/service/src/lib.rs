//! What every service does the same way: start, wait, be ready, drain, and (in tests) die at a chosen step.

mod context;
mod crash;
mod error;
mod governance;

pub use context::{Context, Ready, Running};
pub use crash::{Step, crash_point};
pub use error::{ServiceError, StartError};
pub use governance::{Current, Governance, follow_governance};
