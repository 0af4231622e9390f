//! Keys by which similar work is found.

use std::collections::BTreeMap;

use crate::hash::Hasher;

/// The keys under which the duration of a piece of work is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Keys {
    pub(super) environment: u64,
    pub(super) labels: u64,
    pub(super) submitter: u64,
    pub(super) command: Option<u64>,
}

impl Keys {
    /// Computes the thesis's three keys. `environment` is what the work runs in: an image, or a tool and its version.
    /// `hardware` is the group of machines that it asks for. `labels` describe its content, and `submitter` its owner.
    /// Empty texts are ordinary values: work without any of these is similar to other such work.
    pub fn of(environment: &str, hardware: &str, labels: &BTreeMap<String, String>, submitter: &str) -> Self {
        let base = |purpose| Hasher::new(purpose).text(hardware).text(environment);
        let labelled = |purpose| {
            let names = base(purpose).all(labels.keys().map(String::as_str));
            names.all(labels.values().map(String::as_str))
        };
        Self {
            environment: base("estimate.environment").key(),
            labels: labelled("estimate.labels").key(),
            submitter: labelled("estimate.submitter").text(submitter).key(),
            command: None,
        }
    }

    /// Adds a key for the exact command, which only [`EstimatorKind::Adaptive`](model::EstimatorKind::Adaptive) uses.
    #[must_use]
    pub fn with_command<'a>(self, words: impl IntoIterator<Item = &'a str>) -> Self {
        let hasher = Hasher::new("estimate.command").text(&self.environment.to_string());
        let command = words.into_iter().fold(hasher, Hasher::text).key();
        Self { command: Some(command), ..self }
    }

    /// The same keys within a scope: keys of different scopes never match.
    #[must_use]
    pub fn within(self, scope: &str) -> Self {
        let within = |key: u64| Hasher::new("estimate.scope").text(scope).text(&key.to_string()).key();
        Self {
            environment: within(self.environment),
            labels: within(self.labels),
            submitter: within(self.submitter),
            command: self.command.map(within),
        }
    }

    /// All keys, from the coarsest.
    pub(super) fn all(&self) -> impl Iterator<Item = u64> {
        [self.environment, self.labels, self.submitter].into_iter().chain(self.command)
    }
}
