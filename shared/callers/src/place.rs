//! Where a call comes from, and what it is: for the records of operators.

use std::{net::IpAddr, sync::Arc};

use audit::{Act, Actor, Audit};
use model::AuditKind;

use crate::caller::{Caller, Refusal};

/// A call to a server.
#[derive(Debug)]
pub struct Place {
    audit: Audit,
    /// Route of HTTP with its method, or method of gRPC.
    call: String,
    /// Path of the request, if it says more than the route.
    path: Option<String>,
    address: Option<IpAddr>,
}

impl Place {
    /// A call from an address.
    pub(crate) fn new(audit: Audit, call: String, path: Option<String>, address: Option<IpAddr>) -> Arc<Self> {
        Arc::new(Self { audit, call, path, address })
    }

    /// The address of the client, if it is known.
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    pub(crate) fn path(&self) -> &str {
        self.path.as_deref().unwrap_or(&self.call)
    }

    /// Reports that the call was refused.
    pub fn refused(&self, refusal: &Refusal) {
        refusal.report(self);
    }

    /// Records that the call was refused for a reason that is not about its caller.
    pub fn refused_because(&self, why: &str) {
        self.record(AuditKind::Refusal, Actor::stranger(self.address), |act| act.because(why));
    }

    /// Records that a caller was let in, once in a while.
    pub(crate) fn granted(&self, caller: &Caller) {
        self.audit.granted(&caller.name, self.address, || {
            let actor = Actor { name: caller.name.clone(), proof: caller.proof, address: self.address };
            self.complete(actor)
        });
    }

    pub(crate) fn record(&self, kind: AuditKind, actor: Actor, complete: impl FnOnce(Act) -> Act) {
        self.audit.record(kind, complete(self.complete(actor)));
    }

    fn complete(&self, actor: Actor) -> Act {
        let act = Act::new(actor, self.call.as_str());
        match &self.path {
            Some(path) => act.on(path.as_str()),
            None => act,
        }
    }
}
