//! Means and percentiles of measured values.

use serde_json::{Value, json};

/// The 50th and the 99th percentile of measured values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Percentiles {
    /// Percentiles of the values, which are sorted in place.
    pub(crate) fn of(values: &mut [f64]) -> Self {
        values.sort_by(f64::total_cmp);
        Self { p50: percentile(values, 50), p99: percentile(values, 99) }
    }
}

impl From<Percentiles> for Value {
    fn from(Percentiles { p50, p99 }: Percentiles) -> Self {
        json!({ "p50": p50, "p99": p99 })
    }
}

/// The mean of the values.
pub(crate) fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0_u64), |(sum, count), value| (sum + value, count + 1));
    sum / count.max(1) as f64
}

/// The median and the largest of the values, which are sorted in place.
pub(crate) fn median_and_worst(values: &mut [f64]) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (percentile(values, 50), values.last().copied().unwrap_or_default())
}

/// The given percentile of sorted values.
pub(crate) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}
