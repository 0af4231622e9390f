//! What a rule found broken.

use std::fmt;

use model::BuildKey;

/// The promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// What was acknowledged ends exactly once, and nothing of it follows.
    Terminal,
    /// One owner at a time: no two runs of a build overlap, none outlives its end.
    Overlap,
    /// Events of a build come in their order.
    Order,
    /// Strict priority inside a group.
    Priority,
    /// Builds end as their commands did.
    Outcome,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Terminal, Self::Overlap, Self::Order, Self::Priority, Self::Outcome];
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which.
    pub rule: Rule,
    /// Whose; none where it is about the whole.
    pub keys: Vec<BuildKey>,
    /// What was seen.
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
