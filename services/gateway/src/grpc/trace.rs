//! The trace of a call of `Execute`.

use std::time::SystemTime;

use telemetry::spans::{self, SpanContext, SpanId};
use tonic::metadata::MetadataMap;
use trace::{Answer, Call};

use super::trace_budget::TraceBudget;

/// A call of `Execute`, whose span is exported when it is dropped: when its answer was sent, or its client left.
#[derive(Debug)]
pub(crate) struct CallTrace {
    budget: TraceBudget,
    /// The client's span, if the call is shown in its trace.
    parent: Option<SpanContext>,
    /// The client's span, if its trace has enough calls.
    further_of: Option<SpanContext>,
    started: SystemTime,
    /// None until there is an answer: a refused call has no span.
    answer: Option<Answer>,
    status: &'static str,
    failed: bool,
}

impl CallTrace {
    /// The trace of the client, if it sent one.
    pub(crate) fn of(budget: &TraceBudget, headers: &MetadataMap) -> Self {
        let client: Option<SpanContext> =
            headers.get("traceparent").and_then(|value| value.to_str().ok()?.parse().ok());
        let is_shown = client.is_some_and(|client| budget.shows(client));
        Self {
            started: budget.now(),
            budget: budget.clone(),
            parent: client.filter(|_| is_shown),
            further_of: client.filter(|_| !is_shown),
            answer: None,
            // Unless the answer is complete, the client left before.
            status: "CANCELLED",
            failed: true,
        }
    }

    /// The `traceparent` for the processes that work on the execution. An execution without one has its own trace.
    pub(crate) fn parent(&self) -> Option<String> {
        self.parent.map(|parent| parent.to_string())
    }

    /// Notes how the call is answered.
    pub(crate) fn answered_by(&mut self, answer: Answer) {
        self.answer = Some(answer);
    }

    /// Notes that the client has its whole answer.
    pub(crate) fn complete(&mut self, succeeded: bool) {
        (self.status, self.failed) = ("OK", !succeeded);
    }
}

impl Drop for CallTrace {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take().filter(|_| spans::trace_enabled()) else { return };
        let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
        let id = SpanId::from_bytes(random.to_be_bytes());
        let call = Call { parent: self.parent, id, started: self.started, answer };
        let at = self.budget.now();
        if let Some(client) = self.further_of {
            self.budget.add(client, &call, at, self.failed);
        }
        if let Some(span) = call.ended(at, self.status) {
            spans::export(span);
        }
    }
}
