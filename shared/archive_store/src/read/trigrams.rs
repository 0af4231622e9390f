//! Which sequences of three characters to look up in SQLite's index of texts.
//!
//! The index has a list of builds for each sequence. Walking lists of sequences that nearly all builds have takes longer
//! than all the rest, and tells nothing: a sample of texts says which sequences are rare. Pure.

use std::collections::BTreeSet;

/// Maximum number of sequences to look up: more rule out few builds, and the text itself is checked in any case.
const LOOKED_UP_MAX: usize = 4;
/// Length of a sequence in characters.
pub(crate) const LENGTH: usize = 3;

/// The sequences of `text` that the fewest of `samples` contain, as a query of the index.
pub(crate) fn query(text: &str, samples: &[String]) -> String {
    let letters: Vec<char> = text.chars().collect();
    let all: BTreeSet<String> = letters.windows(LENGTH).map(|part| part.iter().collect()).collect();
    let frequency = |part: &String| samples.iter().filter(|sample| sample.contains(part.as_str())).count();
    let mut counted: Vec<(usize, String)> = all.into_iter().map(|part| (frequency(&part), part)).collect();
    counted.sort();
    let quoted =
        counted.iter().take(LOOKED_UP_MAX).map(|(_, part)| format!("\"{}\"", part.replace('"', "\"\"")));
    quoted.collect::<Vec<_>>().join(" AND ")
}

#[cfg(test)]
mod tests {
    use super::query;

    #[test]
    fn rare_sequences_are_looked_up() {
        let samples = ["build=123 make", "build=456 make", "build=789 ninja"].map(ToOwned::to_owned);
        assert_eq!(query("build=99", &samples), r#""=99" AND "d=9" AND "bui" AND "ild""#);
        assert_eq!(query("a\"b", &samples), r#""a""b""#);
        assert_eq!(query("ärö", &[]), r#""ärö""#);
    }
}
