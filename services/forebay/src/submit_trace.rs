//! The span of the publication of a build by the command line.

use std::time::SystemTime;

use model::BuildKey;
use telemetry::spans::{self, Span, SpanContext, SpanId, SpanKind, TraceId};
use trace::names;
use uuid::Uuid;

/// The publication of a build: a span of the trace of the calling process, if that started one, else of a new one.
#[derive(Debug)]
pub(crate) struct SubmitTrace {
    /// The span of the calling process.
    outer: Option<SpanContext>,
    /// None if this process does not trace.
    own: Option<SpanContext>,
    started: SystemTime,
}

impl SubmitTrace {
    pub(crate) fn begin() -> Self {
        let outer: Option<SpanContext> = std::env::var("TRACEPARENT").ok().and_then(|text| text.parse().ok());
        let own = spans::trace_enabled().then(|| {
            let trace = outer.map_or_else(|| TraceId::from_bytes(Uuid::new_v4().into_bytes()), |it| it.trace);
            let (_, random) = Uuid::new_v4().as_u64_pair();
            let span = SpanId::from_bytes(random.to_be_bytes());
            SpanContext { trace, span, sampled: spans::selects(trace, outer) }
        });
        Self { outer, own, started: SystemTime::now() }
    }

    /// The `traceparent` to publish with the build.
    pub(crate) fn parent(&self) -> Option<String> {
        self.own.or(self.outer).map(|context| context.to_string())
    }

    /// Exports the span, now that the build is published.
    pub(crate) fn end(&self, key: &BuildKey) {
        let Some(own) = self.own else { return };
        let parent = self.outer.map(|outer| outer.span);
        let span = Span::new(own, parent, names::SUBMIT, self.started, SystemTime::now());
        spans::export(span.kind(SpanKind::Producer).with(names::BUILD_ID, key.to_string()));
    }
}
