//! What is searched for in output.

use std::sync::Arc;

use aho_corasick::{
    Anchored,
    automaton::{Automaton as _, StateID},
    nfa::noncontiguous::NFA,
};

use crate::{
    SECRET_BYTES_MAX, Secret,
    spellings::{Spelling, is_skipped, spellings},
};

/// Masks for the secrets of one build: an automaton that finds all their spellings. It implements no trait that prints it.
pub struct Masks {
    automaton: NFA,
    start: StateID,
    /// By state: length of the longest beginning of a spelling that ends here, in bytes.
    depths: Vec<u32>,
    /// By byte: whether a spelling begins with it.
    begins: [bool; 256],
}

/// Secrets that cannot be masked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoMasks {
    #[error("they have {0} bytes together: expected at most {SECRET_BYTES_MAX}")]
    TooLarge(usize),
    #[error("they cannot be searched for: {0}")]
    NoAutomaton(String),
}

impl Masks {
    /// Makes the masks; takes milliseconds for each kilobyte.
    ///
    /// # Errors
    ///
    /// Fails if the secrets are too large together.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Result<Arc<Self>, NoMasks> {
        let secrets: Vec<&Secret> = secrets.into_iter().collect();
        let bytes = secrets.iter().map(|secret| secret.reveal().len()).sum();
        if bytes > SECRET_BYTES_MAX {
            return Err(NoMasks::TooLarge(bytes));
        }
        let spellings = spellings(secrets);
        let no = |error: &dyn std::fmt::Display| NoMasks::NoAutomaton(error.to_string());
        // Its errors name numbers only.
        let automaton = NFA::builder()
            .prefilter(false)
            .build(spellings.iter().map(|spelling| spelling.as_slice()))
            .map_err(|error| no(&error))?;
        let start = automaton.start_state(Anchored::No).map_err(|error| no(&error))?;
        let mut masks = Self { automaton, start, depths: Vec::new(), begins: [false; 256] };
        for spelling in &spellings {
            masks.note(spelling);
        }
        Ok(Arc::new(masks))
    }

    /// Notes the depths of the states on the way through a spelling: after each of its beginnings, no longer one is found.
    fn note(&mut self, spelling: &Spelling) {
        let mut state = self.start;
        for (byte, depth) in spelling.iter().zip(1_u32..) {
            state = self.next(state, *byte);
            if self.depths.len() <= state.as_usize() {
                self.depths.resize(state.as_usize() + 1, 0);
            }
            if let Some(noted) = self.depths.get_mut(state.as_usize()) {
                *noted = depth;
            }
        }
        if let Some(begins) = spelling.first().and_then(|first| self.begins.get_mut(usize::from(*first))) {
            *begins = true;
        }
    }

    pub(crate) fn start(&self) -> StateID {
        self.start
    }

    pub(crate) fn next(&self, state: StateID, byte: u8) -> StateID {
        self.automaton.next_state(Anchored::No, state, byte)
    }

    /// Length of the longest beginning of a spelling that ends in this state, in bytes.
    pub(crate) fn depth(&self, state: StateID) -> usize {
        self.depths.get(state.as_usize()).map_or(0, |depth| *depth as usize)
    }

    /// Length of the longest spelling that ends in this state, in bytes.
    pub(crate) fn found(&self, state: StateID) -> Option<usize> {
        if !self.automaton.is_match(state) {
            return None;
        }
        let length = |index| self.automaton.pattern_len(self.automaton.match_pattern(state, index));
        (0..self.automaton.match_len(state)).map(length).max()
    }

    /// Length of the beginning of `text` in which no spelling begins, in bytes.
    pub(crate) fn harmless(&self, text: &[u8]) -> usize {
        let begins = |byte: &u8| self.begins.get(usize::from(*byte)).copied().unwrap_or(true);
        text.iter().position(begins).unwrap_or(text.len())
    }

    /// Whether a text contains a secret, in any spelling.
    pub fn finds(&self, text: &[u8]) -> bool {
        let mut state = self.start;
        text.iter().filter(|byte| !is_skipped(**byte)).any(|byte| {
            state = self.next(state, *byte);
            self.automaton.is_match(state)
        })
    }
}
