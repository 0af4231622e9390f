//! Common parts of all services: start, wait, become ready, drain, and (in tests) die at a chosen step.

mod clock;
mod context;
mod crash;
mod error;
mod governance;
mod identity;
mod other_store;
mod timer;

pub use context::{Context, Ready, Running, open_cas};
pub use crash::{Step, crash_point};
pub use error::{ServiceError, StartError};
pub use governance::{Current, Governance, follow_governance};
pub use identity::{host_name, join_cas, join_store};
pub use other_store::OtherStore;
pub use timer::sleep_until;
