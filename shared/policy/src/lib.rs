//! Every decision, as pure functions of values: no I/O, no clock, no randomness.

pub mod actions;
mod dispatch;
mod instances;
mod retry;

pub use dispatch::{GroupHead, Placement, place};
pub use instances::{
    Admitted, InstancePattern, InstanceRefusal, InstanceRule, InstanceRules, OtherGroups, ParseRuleError,
};
pub use retry::{AfterLoss, after_loss};
