//! What happens to executions of actions: which pool admits them, which executor gets them, what follows a loss.

mod admit;
mod assign;
mod ending;

pub use admit::{AdmitError, DEFAULT_POOL, POOL_PROPERTY, Refusal, admit};
pub use assign::{Assigned, Free, assign};
pub use ending::{AfterExecutorLoss, PoolState, after_executor_loss, overdue, waits_until};
