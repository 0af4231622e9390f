//! Violations that the rules find.

use std::fmt;

use model::BuildKey;

/// The promises of the farm about builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Every acknowledged build ends exactly once, and no event follows its end.
    Terminal,
    /// One owner at a time: no two runs of a build overlap, and none outlives the build's end.
    Overlap,
    /// Events of a build arrive in the specified order.
    Order,
    /// Strict priority inside a group.
    Priority,
    /// The outcome of a build matches its command.
    Outcome,
}

impl Rule {
    /// All rules, in order of declaration.
    pub const ALL: [Self; 5] = [Self::Terminal, Self::Overlap, Self::Order, Self::Priority, Self::Outcome];
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule that is broken.
    pub rule: Rule,
    /// Builds concerned; empty if the finding is about the whole history.
    pub keys: Vec<BuildKey>,
    /// Description of the evidence.
    pub text: String,
}

impl Finding {
    pub(crate) fn new(rule: Rule, key: &BuildKey, text: impl Into<String>) -> Self {
        Self { rule, keys: vec![key.clone()], text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: ", self.rule)?;
        for key in &self.keys {
            write!(f, "{key} ")?;
        }
        f.write_str(&self.text)
    }
}
