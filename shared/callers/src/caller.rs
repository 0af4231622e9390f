//! A caller whose identity is verified, and why a request has none.

use std::sync::{Arc, LazyLock};

use policy::access::{Denied, Need, Reach, Rights};
use telemetry::metrics::{Counter, Label, count};

/// The caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Its name: `key:NAME`, `ISSUER:SUBJECT` or `certificate:NAME`; empty if it proved nothing.
    pub name: String,
    pub rights: Rights,
}

impl Caller {
    /// The caller of every request to a farm without access rules.
    pub(crate) fn anyone() -> Arc<Self> {
        static ANYONE: LazyLock<Arc<Caller>> =
            LazyLock::new(|| Arc::new(Caller { name: String::new(), rights: Rights::all() }));
        Arc::clone(&ANYONE)
    }

    /// A caller who may do nothing.
    fn stranger() -> Arc<Self> {
        let nothing = Rights { rights: [].into(), groups: Reach::Listed([].into()), priorities: [].into() };
        Arc::new(Self { name: String::new(), rights: nothing })
    }

    /// The caller that was found for a request. A request that nobody examined may do nothing.
    pub fn of(extensions: &tonic::codegen::http::Extensions) -> Arc<Self> {
        extensions.get::<Arc<Self>>().cloned().unwrap_or_else(Self::stranger)
    }

    /// The name as the submitter of builds; none for a caller without a name.
    pub fn submitter(&self) -> Option<&str> {
        (!self.name.is_empty()).then_some(self.name.as_str())
    }

    /// Checks a need, and reports a refusal.
    ///
    /// # Errors
    ///
    /// Fails if the rights do not suffice.
    pub fn check(&self, need: Need<'_>) -> Result<(), Refusal> {
        self.rights.check(need).map_err(|denied| self.refused(denied))
    }

    /// Reports that this caller was refused something.
    pub fn refused(&self, denied: Denied) -> Refusal {
        tracing::info!(caller = self.name, reason = %denied, "call refused");
        count(Counter::CallsRefused, &[(Label::Reason, "denied")], 1);
        Refusal::Denied(denied)
    }
}

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
}

impl Refusal {
    pub(crate) fn invalid(reason: impl Into<String>) -> Self {
        Self::Invalid { reason: reason.into() }
    }

    /// Why the credentials were not accepted, for operators.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Invalid { reason } => Some(reason),
            Self::Missing | Self::Denied(_) => None,
        }
    }

    /// Counts and logs a request whose caller is not known.
    pub(crate) fn report(&self) {
        let (label, reason) = match self {
            Self::Missing => ("missing", "no credentials"),
            Self::Invalid { reason } => ("invalid", reason.as_str()),
            // Reported where it was found.
            Self::Denied(_) => return,
        };
        count(Counter::CallsRefused, &[(Label::Reason, label)], 1);
        tracing::info!(reason, "credentials not accepted");
    }
}
