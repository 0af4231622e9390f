//! What is recorded of a call.

use std::net::IpAddr;

use model::{AuditEvent, AuditKind, AuditProof, AuditText, Millis};

/// Who made a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Name as access rules know it; empty if there is none.
    pub name: String,
    pub proof: AuditProof,
    pub address: Option<IpAddr>,
}

impl Actor {
    /// Someone who proved nothing, at an address.
    pub fn stranger(address: Option<IpAddr>) -> Self {
        Self { name: String::new(), proof: AuditProof::Nothing, address }
    }

    /// A client of the bus, with the name that it states.
    pub fn stated(name: Option<&str>) -> Self {
        Self { name: name.unwrap_or_default().to_owned(), proof: AuditProof::Stated, address: None }
    }
}

/// What someone did or wanted to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Act {
    pub actor: Actor,
    pub(crate) call: String,
    pub(crate) target: Option<String>,
    pub(crate) reason: Option<String>,
}

impl Act {
    /// A call by someone.
    pub fn new(actor: Actor, call: impl Into<String>) -> Self {
        Self { actor, call: call.into(), target: None, reason: None }
    }

    /// The same, about this.
    #[must_use]
    pub fn on(self, target: impl Into<String>) -> Self {
        Self { target: Some(target.into()), ..self }
    }

    /// The same, with what was changed, or why it was refused.
    #[must_use]
    pub fn because(self, reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..self }
    }

    pub(crate) fn event(self, kind: AuditKind, now: Millis, source: &str) -> AuditEvent {
        let text = |text: String| AuditText::from(text);
        AuditEvent {
            at_ms: now,
            kind,
            decision: kind.decision(),
            who: text(self.actor.name),
            proof: self.actor.proof,
            address: self.actor.address.map(|address| text(address.to_string())),
            call: text(self.call),
            target: self.target.map(text),
            reason: self.reason.map(text),
            source: source.into(),
            dropped: 0,
        }
    }
}
