//! Means and rounding of figures.

/// The mean; 0 if there are no values.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u64), |(sum, count), value| (sum + value, count + 1));
    sum / count.max(1) as f64
}

/// Rounds to this number of decimals.
pub(crate) fn rounded(number: f64, decimals: i32) -> f64 {
    let parts = 10_f64.powi(decimals);
    (number * parts).round() / parts
}

/// A number without its fraction; 0 for a negative number.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast to u64 saturates, as intended"
)]
pub(crate) fn whole(number: f64) -> u64 {
    number as u64
}

/// Converts seconds to whole milliseconds, at least 1.
pub(crate) fn millis(seconds: f64) -> u64 {
    whole((seconds * 1000.0).round().clamp(1.0, 1e12))
}
