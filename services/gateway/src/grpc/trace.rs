//! The trace of a call of `Execute`.

use std::time::SystemTime;

use bus::Bus;
use telemetry::spans::{self, SpanContext, SpanId};
use tonic::metadata::MetadataMap;
use trace::{Answer, Call};

/// A call of `Execute`, whose span is exported when it is dropped: when its answer was sent, or its client left.
#[derive(Debug)]
pub(crate) struct CallTrace {
    bus: Bus,
    parent: Option<SpanContext>,
    started: SystemTime,
    /// None until there is an answer: a refused call has no span.
    answer: Option<Answer>,
    status: &'static str,
}

impl CallTrace {
    /// The trace of the client, if it sent one.
    pub(crate) fn of(bus: &Bus, headers: &MetadataMap) -> Self {
        let parent = headers.get("traceparent").and_then(|value| value.to_str().ok()?.parse().ok());
        let started = bus.clock().system_time();
        // Unless the answer is complete, the client left before.
        Self { bus: bus.clone(), parent, started, answer: None, status: "CANCELLED" }
    }

    /// The `traceparent` of the client, for the processes that work on the execution.
    pub(crate) fn parent(&self) -> Option<String> {
        self.parent.map(|parent| parent.to_string())
    }

    /// Notes how the call is answered.
    pub(crate) fn answered_by(&mut self, answer: Answer) {
        self.answer = Some(answer);
    }

    /// Notes that the client has its whole answer.
    pub(crate) fn complete(&mut self) {
        self.status = "OK";
    }
}

impl Drop for CallTrace {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take().filter(|_| spans::trace_enabled()) else { return };
        let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
        let id = SpanId::from_bytes(random.to_be_bytes());
        let call = Call { parent: self.parent, id, started: self.started, answer };
        if let Some(span) = call.ended(self.bus.clock().system_time(), self.status) {
            spans::export(span);
        }
    }
}
