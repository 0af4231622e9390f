//! A caller whose identity is verified, and why a request has none.

use std::{
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use audit::{Act, Actor};
use model::{AuditKind, AuditProof, Group, Sight, Zone};
use parking_lot::Mutex;
use policy::{
    access::{Denied, Need, Reach, Rights},
    limits::{CallerLimits, Exceeded},
    zones::{ZoneReach, Zones},
};
use telemetry::metrics::{Counter, Label, count};

use crate::{
    limits::{Use, Watching},
    place::Place,
    slowed::Slowed,
};

/// Minimum time between two log lines about callers that are not known: they can send any number of requests.
const LOG_EVERY: Duration = Duration::from_millis(200);

/// The caller of a request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Its name: `key:NAME`, `ISSUER:SUBJECT` or `certificate:NAME`; empty if it proved nothing.
    pub name: String,
    pub proof: AuditProof,
    pub rights: Arc<Rights>,
    /// Whether access rules gave it these rights; otherwise the farm has none.
    pub is_ruled: bool,
    /// The call that it makes; none: only its identity is known.
    pub(crate) place: Option<Arc<Place>>,
    /// What it uses; none: it has no limits.
    pub(crate) usage: Option<Arc<Use>>,
}

impl Caller {
    /// A caller that access rules know.
    pub(crate) fn ruled(name: String, proof: AuditProof, rights: Rights) -> Arc<Self> {
        Arc::new(Self { name, proof, rights: Arc::new(rights), is_ruled: true, place: None, usage: None })
    }

    /// The caller of every request to a farm without access rules.
    pub(crate) fn anyone() -> Arc<Self> {
        static ANYONE: LazyLock<Arc<Caller>> = LazyLock::new(|| {
            let (proof, rights) = (AuditProof::Nothing, Arc::new(Rights::all()));
            Arc::new(Caller { name: String::new(), proof, rights, is_ruled: false, place: None, usage: None })
        });
        Arc::clone(&ANYONE)
    }

    /// A caller who may do nothing.
    fn stranger() -> Arc<Self> {
        let nothing = Rights {
            rights: [].into(),
            groups: Reach::Listed([].into()),
            priorities: [].into(),
            zone: ZoneReach::Only(Zone::default()),
            limits: CallerLimits::default(),
        };
        Self::ruled(String::new(), AuditProof::Nothing, nothing)
    }

    /// The caller that was found for a request. A request that was not examined may do nothing.
    pub fn of(extensions: &tonic::codegen::http::Extensions) -> Arc<Self> {
        extensions.get::<Arc<Self>>().cloned().unwrap_or_else(Self::stranger)
    }

    /// The same caller, who makes this call.
    pub fn calling(&self, place: &Arc<Place>) -> Arc<Self> {
        Arc::new(Self { place: Some(Arc::clone(place)), ..self.clone() })
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

    /// What a call of this caller sees of the store; `None` in a farm without zones. `asked` is the zone that its header names.
    ///
    /// # Errors
    ///
    /// Fails if the caller does not reach the zone that it asks for.
    pub fn sight(
        &self,
        zones: &Zones,
        asked: Option<&Zone>,
        group: Option<&Group>,
    ) -> Result<Option<Sight>, Refusal> {
        let sight = zones.sight_of_call(&self.rights.zone, asked, group);
        sight.map_err(|foreign| self.refused(Denied::Zone(foreign)))
    }

    /// Reports that this caller was refused something.
    pub fn refused(&self, denied: Denied) -> Refusal {
        tracing::info!(caller = self.name, reason = %denied, "call refused");
        count(Counter::CallsRefused, &[(Label::Reason, "denied")], 1);
        self.record(AuditKind::Refusal, |act| act.because(denied.to_string()));
        Refusal::Denied(denied)
    }

    /// Reports that this caller has used up what it may use.
    pub(crate) fn limited(&self, exceeded: Exceeded) -> Refusal {
        count(Counter::CallsRefused, &[(Label::Reason, "limited")], 1);
        self.record(AuditKind::Refusal, |act| act.because(exceeded.to_string()));
        Refusal::Limited(exceeded)
    }

    /// Counts a build that this caller submits.
    ///
    /// # Errors
    ///
    /// Fails if it submits too many.
    pub fn count_build(&self) -> Result<(), Refusal> {
        let Some(usage) = &self.usage else { return Ok(()) };
        usage.build().map_err(|exceeded| self.limited(exceeded))
    }

    /// Counts a watch of this caller, which is open until the value is dropped.
    ///
    /// # Errors
    ///
    /// Fails if too many are open.
    pub fn watch(&self) -> Result<Option<Watching>, Refusal> {
        let watching = self.usage.as_ref().map(Use::watch).transpose();
        watching.map_err(|exceeded| self.limited(exceeded))
    }

    /// The body of a request of this caller, which is read as fast as the caller may upload.
    pub fn slowed<B>(&self, body: B) -> Slowed<B> {
        Slowed::new(body, self.usage.clone().filter(|usage| usage.limits_uploads()))
    }

    /// Whether the caller may upload only so fast.
    pub fn is_slowed(&self) -> bool {
        self.usage.as_ref().is_some_and(|usage| usage.limits_uploads())
    }

    /// Records for operators what this caller did: to what, and how it changed.
    pub fn did(&self, kind: AuditKind, target: impl Into<String>, change: Option<&str>) {
        self.record(kind, |act| match change {
            Some(change) => act.on(target).because(change),
            None => act.on(target),
        });
    }

    fn record(&self, kind: AuditKind, complete: impl FnOnce(Act) -> Act) {
        if let Some(place) = &self.place {
            let actor =
                Actor { name: self.name.clone(), proof: self.proof, address: place.address() };
            place.record(kind, actor, complete);
        }
    }
}

/// Whether a refusal may be logged: at most one in [`LOG_EVERY`]. Returns how many were not since the last one.
fn log_line() -> Option<u64> {
    static LAST: Mutex<Option<(Instant, u64)>> = Mutex::new(None);
    let mut last = LAST.lock();
    match &mut *last {
        Some((at, left_out)) if at.elapsed() < LOG_EVERY => {
            *left_out += 1;
            None
        }
        before => {
            let left_out = before.take().map_or(0, |(_, left_out)| left_out);
            *before = Some((Instant::now(), 0));
            Some(left_out)
        }
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

    /// Counts and logs a refused request, and records it for operators.
    pub(crate) fn report(&self, place: &Place) {
        let (path, client) = (place.path(), place.address());
        let client = client.map(|client| client.to_string()).unwrap_or_default();
        let (label, reason) = match self {
            Self::Missing => ("missing", "no credentials"),
            Self::Invalid { reason } => ("invalid", reason.as_str()),
            // Counted and recorded where it was found.
            Self::Denied(denied) => {
                tracing::info!(path, client, reason = %denied, "call refused");
                return;
            }
            // A line for each would be as many as the calls.
            Self::Limited(exceeded) => {
                tracing::debug!(path, client, reason = %exceeded, "call refused");
                return;
            }
        };
        count(Counter::CallsRefused, &[(Label::Reason, label)], 1);
        place.record(AuditKind::Refusal, Actor::stranger(place.address()), |act| act.because(reason));
        if let Some(more) = log_line() {
            tracing::warn!(path, client, reason, more, "credentials not accepted");
        }
    }
}
