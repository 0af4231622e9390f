//! The inputs from which others are made.

use std::collections::HashSet;

use crate::random::Random;

/// Maximum number of inputs, and of outcomes: with more of them, each would be changed too seldom.
const INPUTS_MAX: usize = 1000;
const OUTCOMES_MAX: usize = 100_000;

/// Number of words at the start of an outcome that distinguish it.
const WORDS_MAX: usize = 14;

/// Good inputs, and those whose outcome was new.
pub(crate) struct Corpus {
    inputs: Vec<Vec<u8>>,
    outcomes: HashSet<String>,
    /// The first inputs, which stay.
    seeds: usize,
}

impl Corpus {
    pub(crate) fn new(seeds: Vec<Vec<u8>>) -> Self {
        Self { seeds: seeds.len(), inputs: seeds, outcomes: HashSet::new() }
    }

    pub(crate) fn pick(&self, random: &mut Random) -> &[u8] {
        random.of(&self.inputs).map(Vec::as_slice).unwrap_or_default()
    }

    /// Keeps an input with a new outcome; in a full list, it replaces another input.
    pub(crate) fn learn(&mut self, input: &[u8], outcome: &str, random: &mut Random) {
        if self.outcomes.len() >= OUTCOMES_MAX || !self.outcomes.insert(kind(outcome)) {
            return;
        }
        if self.inputs.len() < INPUTS_MAX {
            self.inputs.push(input.to_vec());
        } else if let Some(place) = self.inputs.iter_mut().skip(self.seeds).nth(random.below(INPUTS_MAX)) {
            *place = input.to_vec();
        }
    }

    /// Number of outcomes that differ in more than names and numbers.
    pub(crate) fn outcomes(&self) -> usize {
        self.outcomes.len()
    }
}

/// The first words of an outcome, without what is quoted from the input, numbers and digests.
fn kind(outcome: &str) -> String {
    let unquoted = outcome.split(['"', '`']).step_by(2).collect::<String>();
    let words = unquoted.split(|c: char| c.is_whitespace() || c.is_ascii_punctuation());
    let is_kept = |word: &&str| !word.is_empty() && word.bytes().all(|c| c.is_ascii_alphabetic());
    words.filter(is_kept).take(WORDS_MAX).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_inputs_with_other_outcomes_are_kept() {
        let (mut corpus, mut random) = (Corpus::new(vec![b"seed".to_vec()]), Random::new(1));
        corpus.learn(b"a", "unknown field `x` at line 3", &mut random);
        corpus.learn(b"b", "unknown field `y` at line 40", &mut random);
        corpus.learn(b"c", "expected a number", &mut random);
        assert_eq!((corpus.outcomes(), corpus.inputs.len()), (2, 3));
    }
}
