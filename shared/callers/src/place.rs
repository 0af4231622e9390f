//! Where a call comes from, and what it is: for the records of operators.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use audit::{Act, Actor, Audit};
use model::{AuditKind, AuditProof};
use parking_lot::Mutex;
use telemetry::metrics::{Counter, Label, count};

use crate::refusal::Refusal;

/// Minimum time between two log lines about callers that are not known: they can send any number of requests.
const LOG_EVERY: Duration = Duration::from_millis(200);

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
    pub(crate) fn new(
        audit: Audit,
        call: String,
        path: Option<String>,
        address: Option<IpAddr>,
    ) -> Arc<Self> {
        Arc::new(Self { audit, call, path, address })
    }

    /// The address of the client, if it is known.
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    fn path(&self) -> &str {
        self.path.as_deref().unwrap_or(&self.call)
    }

    /// Counts and logs that the call was refused, and records it for operators.
    pub fn refused(&self, refusal: &Refusal) {
        let path = self.path();
        let client = self.address.map(|client| client.to_string()).unwrap_or_default();
        let (label, reason) = match refusal {
            Refusal::Missing => ("missing", "no credentials"),
            Refusal::Invalid { reason } => ("invalid", reason.as_str()),
            // Counted and recorded where it was found.
            Refusal::Denied(denied) => {
                tracing::info!(path, client, reason = %denied, "call refused");
                return;
            }
            // A line for each would be as many as the calls.
            Refusal::Limited(exceeded) => {
                tracing::debug!(path, client, reason = %exceeded, "call refused");
                return;
            }
        };
        count(Counter::CallsRefused, &[(Label::Reason, label)], 1);
        self.refused_because(reason);
        if let Some(more) = log_line() {
            tracing::warn!(path, client, reason, more, "credentials not accepted");
        }
    }

    /// Records that the call was refused for a reason that is not about its caller.
    pub fn refused_because(&self, why: &str) {
        self.record(AuditKind::Refusal, Actor::stranger(self.address), |act| act.because(why));
    }

    /// Records that a caller was let in, once in a while.
    pub(crate) fn granted(&self, name: &str, proof: AuditProof) {
        self.audit.granted(name, self.address, || {
            self.complete(Actor { name: name.to_owned(), proof, address: self.address })
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
