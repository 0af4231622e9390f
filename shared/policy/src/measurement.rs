//! Statistics of repeated measurements: summaries of a sample, bootstrap intervals, the comparison of two samples, what
//! disturbed a run, and whether another run of a measured task is needed. All results depend on the arguments alone.

mod compare;
mod disturbance;
mod interval;
mod repeat;
mod sample;
mod summary;

pub use compare::{Comparison, Speed, Stability, compare};
pub use disturbance::disturbances;
pub use interval::{Interval, Relation};
pub use repeat::{NextRun, next_run, slow_median};
pub use sample::{Sample, Statistic};
pub use summary::{measurement, reported_times, time_summary};

#[cfg(test)]
mod tests;
