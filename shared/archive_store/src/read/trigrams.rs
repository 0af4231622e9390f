//! Which sequences of three characters to look up in an index of texts.
//!
//! The index has a list of builds for each sequence. Walking lists of sequences that nearly all builds have takes longer
//! than all the rest, and tells nothing: a sample of texts says which sequences are rare. Pure.

use std::collections::BTreeSet;

/// Maximum number of sequences to look up: more rule out few builds, and the text itself is checked in any case.
const LOOKED_UP_MAX: usize = 4;
/// Length of a sequence in characters.
pub(crate) const LENGTH: usize = 3;

/// The sequences of a text to look up.
pub(crate) struct Parts(Vec<String>);

impl Parts {
    /// The sequences of `text` that the fewest of `samples` contain.
    pub(crate) fn of(text: &str, samples: &[String]) -> Self {
        Self::rarest(text, samples, |_| true)
    }

    /// Those without separators of words, which the index of PostgreSQL does not have.
    pub(crate) fn of_words(text: &str, samples: &[String]) -> Self {
        Self::rarest(text, samples, |part| part.chars().all(char::is_alphanumeric))
    }

    fn rarest(text: &str, samples: &[String], usable: impl Fn(&str) -> bool) -> Self {
        let letters: Vec<char> = text.chars().collect();
        let all: BTreeSet<String> = letters.windows(LENGTH).map(|part| part.iter().collect()).collect();
        let frequency =
            |part: &String| samples.iter().filter(|sample| sample.contains(part.as_str())).count();
        let usable = all.into_iter().filter(|part| usable(part));
        let mut counted: Vec<(usize, String)> = usable.map(|part| (frequency(&part), part)).collect();
        counted.sort();
        Self(counted.into_iter().take(LOOKED_UP_MAX).map(|(_, part)| part).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Number of `samples` that contain all of them.
    pub(crate) fn samples_with_all(&self, samples: &[String]) -> usize {
        samples.iter().filter(|sample| self.all().all(|part| sample.contains(part))).count()
    }

    /// As a query of SQLite's index.
    pub(crate) fn quoted(&self) -> String {
        let quoted = self.all().map(|part| format!("\"{}\"", part.replace('"', "\"\"")));
        quoted.collect::<Vec<_>>().join(" AND ")
    }
}

#[cfg(test)]
mod tests {
    use super::Parts;

    fn samples() -> [String; 3] {
        ["build=123 make", "build=456 make", "build=789 ninja"].map(ToOwned::to_owned)
    }

    #[test]
    fn rare_sequences_are_looked_up() {
        let query = |text, samples: &[String]| Parts::of(text, samples).quoted();
        assert_eq!(query("build=99", &samples()), r#""=99" AND "d=9" AND "bui" AND "ild""#);
        assert_eq!(query("a\"b", &samples()), r#""a""b""#);
        assert_eq!(query("ärö", &[]), r#""ärö""#);
    }

    #[test]
    fn sequences_of_words_have_no_separators() {
        let parts = |text| Parts::of_words(text, &samples()).0;
        assert_eq!(parts("make_1234"), ["234", "123", "ake", "mak"]);
        assert!(parts("a=b/c").is_empty());
    }

    #[test]
    fn samples_are_counted_that_have_all_sequences() {
        let found = |text| Parts::of(text, &samples()).samples_with_all(&samples());
        assert_eq!([found("make"), found("build"), found("=456"), found("zzz")], [2, 3, 1, 0]);
    }
}
