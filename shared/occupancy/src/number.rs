//! The few conversions between widths of numbers, each saying what it does with what does not fit.

/// The low 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "the low bits are what is asked for")]
pub(crate) const fn low(value: u64) -> u32 {
    value as u32
}

/// The nearest single-precision number.
#[expect(clippy::cast_possible_truncation, reason = "weights are kept in single precision")]
pub(crate) const fn single(value: f64) -> f32 {
    value as f32
}

/// The count, or the largest count there is.
pub(crate) fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// The place in a list.
pub(crate) const fn place(value: u32) -> usize {
    value as usize
}
