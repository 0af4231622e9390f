//! By what work is alike.

use std::collections::BTreeMap;

use crate::hash::Hasher;

/// Under which keys the duration of a piece of work is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Keys {
    pub(super) environment: u64,
    pub(super) labels: u64,
    pub(super) submitter: u64,
    pub(super) command: Option<u64>,
}

impl Keys {
    /// The thesis's three keys. `environment` is what the work runs in: an image or a tool and its version. `hardware` is
    /// the group of machines that it asks for. `labels` say what it is, `submitter` whose it is. Empty texts are as good as
    /// others: work that names none of these is alike.
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

    /// The same with the very command that is run, which [`EstimatorKind::Adaptive`](super::EstimatorKind::Adaptive) looks
    /// at besides.
    #[must_use]
    pub fn with_command<'a>(self, words: impl IntoIterator<Item = &'a str>) -> Self {
        let hasher = Hasher::new("estimate.command").text(&self.environment.to_string());
        let command = words.into_iter().fold(hasher, Hasher::text).key();
        Self { command: Some(command), ..self }
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = u64> {
        [self.environment, self.labels, self.submitter].into_iter().chain(self.command)
    }
}
