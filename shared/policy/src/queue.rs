//! Queue policies of chapter 3 of the thesis, for the simulator. The dispatcher uses the same order, which
//! [`crate::band_rank`] packs into one number.
//!
//! - *One queue*: work waits in one place, and a free worker gets the first item ([`order_key`]).
//! - *One queue per worker*: work is assigned to a worker when it arrives, by the loads of the workers ([`Spread`]).

mod levels;
mod order;
mod spread;

pub use levels::{Levels, charge, level};
pub use order::{OrderKey, UNKNOWN_ESTIMATE_MS, Waiting, aged_ms, deadline_ms, order_key};
pub use spread::{Spread, Turn, WorkerLoad, least_loaded, less_loaded, next_in_turn, two_of};

#[cfg(test)]
mod tests;
