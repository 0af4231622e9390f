//! Conversions between number types, each of which states what happens to values that do not fit.

/// The low 32 bits of `value`.
#[expect(clippy::cast_possible_truncation, reason = "only the low bits are wanted")]
pub(crate) const fn low(value: u64) -> u32 {
    value as u32
}

/// The nearest single-precision number.
#[expect(clippy::cast_possible_truncation, reason = "weights are kept in single precision")]
pub(crate) const fn single(value: f64) -> f32 {
    value as f32
}

/// The count, or `u32::MAX` if it is larger.
pub(crate) fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// The number as an index of a list.
pub(crate) const fn to_index(value: u32) -> usize {
    value as usize
}
