//! Keeps the store of a data folder within its bounds: the processes on the folder report their writes, and one of
//! them evicts and reports whether the store is full.

mod evict;
mod usage;

pub use evict::{keep_bounds, run, take_over};
pub use usage::{StoreRoom, StoreUsage, store_rooms};
