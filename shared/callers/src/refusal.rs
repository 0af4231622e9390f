//! Why a request is refused.

use policy::{access::Denied, limits::Exceeded};

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It has no credentials, and no rule is for callers without them.
    #[error("this farm has access rules: send an API key or a token")]
    Missing,
    /// Its credentials prove nothing, or no rule is for its caller. The answer does not say which.
    #[error("the credentials are not accepted")]
    Invalid {
        /// For the log of the gateway only.
        reason: String,
    },
    /// Its caller is known, and may not do this.
    #[error(transparent)]
    Denied(Denied),
    /// Its caller is known, and uses too much.
    #[error(transparent)]
    Limited(Exceeded),
}

impl Refusal {
    pub(crate) fn invalid(reason: impl Into<String>) -> Self {
        Self::Invalid { reason: reason.into() }
    }

    /// Why the credentials were not accepted, for operators.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Invalid { reason } => Some(reason),
            Self::Missing | Self::Denied(_) | Self::Limited(_) => None,
        }
    }
}
