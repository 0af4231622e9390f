//! Which waiting work starts next, and at which worker: the policies of chapter 3 of the thesis, for the dispatcher and the
//! simulator alike.
//!
//! - *One queue*: work waits in one place, and a worker that becomes free takes what comes first ([`order_key`]).
//! - *A queue for each worker*: work goes to a worker as it arrives, by what the workers have in hand ([`Spread`]).

mod order;
mod spread;

pub use order::{OrderKey, UNKNOWN_ESTIMATE_MS, Waiting, aged_ms, deadline_ms, order_key};
pub use spread::{Spread, Turn, WorkerLoad, least_loaded, less_loaded, next_in_turn, two_of};

#[cfg(test)]
mod tests;
