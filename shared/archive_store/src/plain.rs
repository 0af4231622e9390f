//! Numbers and texts in the form that both databases accept.

/// Maximum length in characters of names and values that are in an index: PostgreSQL refuses entries above 2,700 bytes.
pub(crate) const INDEXED_MAX: usize = 300;

/// `number` as SQL stores it. No number of a stream or of a size is larger.
pub(crate) fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The number that [`whole`] stored; 0 for a negative one, which nothing writes.
pub(crate) fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// Text as both databases accept it, at most `most` characters long: PostgreSQL refuses the character 0.
pub(crate) fn clean(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c == '\0' { '\u{fffd}' } else { c }).collect()
}
