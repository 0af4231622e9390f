//! A caller whose identity is verified.

use std::sync::{Arc, LazyLock};

use audit::{Act, Actor};
use model::{AuditKind, AuditProof, BuildKey, Group, Priority, Sight, Zone};
use policy::{
    access::{Denied, Need, Reach, Rights},
    limits::{CallerLimits, Exceeded},
    zones::{ZoneReach, Zones},
};
use subtle::ConstantTimeEq as _;
use telemetry::metrics::{Counter, Label, count};

use crate::{
    limits::{Use, Watching},
    place::Place,
    refusal::Refusal,
    session::InSession,
    slowed::Slowed,
};

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
    /// The session by which it is known; none: it has proved its name with this call.
    pub(crate) session: Option<Arc<InSession>>,
}

/// The name of the callers with a token of this build.
pub(crate) fn of_build(build: &BuildKey) -> String {
    format!("build:{build}")
}

impl Caller {
    /// A caller that access rules know.
    pub(crate) fn ruled(name: String, proof: AuditProof, rights: Rights) -> Arc<Self> {
        Arc::new(Self {
            name,
            proof,
            rights: Arc::new(rights),
            is_ruled: true,
            place: None,
            usage: None,
            session: None,
        })
    }

    /// The caller of every request to a farm without access rules.
    pub(crate) fn anyone() -> Arc<Self> {
        static ANYONE: LazyLock<Arc<Caller>> = LazyLock::new(|| {
            let (proof, rights) = (AuditProof::Nothing, Arc::new(Rights::all()));
            Arc::new(Caller {
                name: String::new(),
                proof,
                rights,
                is_ruled: false,
                place: None,
                usage: None,
                session: None,
            })
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

    /// Whether it may act for a running build: with the token of the build, or the right to its priority.
    pub fn may_act_for(&self, build: &BuildKey, priority: Priority) -> bool {
        let has_its_token = self.proof == AuditProof::Build && self.name == of_build(build);
        !self.is_ruled || has_its_token || self.rights.check_priority(priority).is_ok()
    }

    /// The name as the submitter of builds; none for a caller without a name.
    pub fn submitter(&self) -> Option<&str> {
        (!self.name.is_empty()).then_some(self.name.as_str())
    }

    /// Whether it is a person who signed in on the pages: the browser sends the session by itself, also for pages of others.
    pub fn is_in_session(&self) -> bool {
        self.session.is_some()
    }

    /// What forms of its pages contain, to prove that they are from its pages; none without a session.
    pub fn form_token(&self) -> Option<&str> {
        self.session.as_ref().map(|session| session.form_token.0.as_str())
    }

    /// Whether a form or a header has the token of this session.
    pub fn has_form_token(&self, given: &str) -> bool {
        self.form_token().is_some_and(|token| token.as_bytes().ct_eq(given.as_bytes()).into())
    }

    /// The name by which the person is known to itself; without a session, that of the caller.
    pub fn shown_name(&self) -> &str {
        self.session.as_ref().map_or(&self.name, |session| &session.shown)
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

    /// Records that a call of this caller was refused for a reason that is not about its rights.
    pub fn refused_because(&self, why: &str) {
        tracing::info!(caller = self.name, reason = why, "call refused");
        count(Counter::CallsRefused, &[(Label::Reason, "denied")], 1);
        self.record(AuditKind::Refusal, |act| act.because(why));
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
            let actor = Actor { name: self.name.clone(), proof: self.proof, address: place.address() };
            place.record(kind, actor, complete);
        }
    }
}
