//! Every decision, as pure functions of values: no I/O, no clock, no randomness.

mod dispatch;
mod retry;

pub use dispatch::{GroupHead, Placement, place};
pub use retry::{AfterLoss, after_loss};
