//! Every decision, as pure functions of values: no I/O, no clock, no chance but what is given.

pub mod actions;
mod allowance;
mod band;
mod dequeue;
mod dispatch;
mod executor_types;
mod governor;
mod hash;
mod instances;
mod random;
mod retry;
mod why;
pub mod workspace;

pub use allowance::{Admission, Allowance, Clamped, Held, QuotaTotals};
pub use band::band_rank;
pub use dequeue::{Dequeue, Lack, Throttled, dequeue};
pub use dispatch::{GroupHead, Placement, draws, place, weight};
pub use executor_types::executor_types;
pub use governor::{GovernorSettings, GroupState, InvalidGovernorSettings, govern, next_tick};
pub use instances::{
    Admitted, InstancePattern, InstanceRefusal, InstanceRule, InstanceRules, OtherGroups, ParseRuleError,
};
pub use random::Random;
pub use retry::{AfterLoss, after_loss};
pub use why::{Stand, why, why_text};
