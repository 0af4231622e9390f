//! Spans with ids that their makers choose, made when they end.
//!
//! A trace is exported if the [`Sampler`] selects it at its start, or if [`keep`] is called for it later: until then its
//! spans are held, within limits of memory and time.

mod exporter;
mod held;
mod otlp;
mod span;

use std::sync::OnceLock;
use std::time::Instant;

use parking_lot::Mutex;

pub(crate) use exporter::Exporter;
use held::Held;
pub(crate) use otlp::OtlpError;
pub use span::{Attribute, LINKS_MAX, Span, SpanKind};

pub use crate::sampler::Sampler;
use crate::settings::{Settings, Traces};
pub use crate::trace_context::{InvalidContext, SpanContext, SpanId, TraceId, is_valid_traceparent};

/// Where the spans of this process go.
#[derive(Debug)]
struct Sink {
    exporter: Exporter,
    sampler: Sampler,
    held: Mutex<Held>,
}

static SINK: OnceLock<Sink> = OnceLock::new();

/// Starts to export spans to `traces`. At most one call of a process has an effect.
pub(crate) fn start(settings: &Settings, traces: &Traces) -> Result<(), OtlpError> {
    let exporter = Exporter::start(traces, otlp::resource(settings, traces))?;
    // Fails in a process that has started before, whose exporter stays.
    let _ = SINK.set(Sink { exporter, sampler: traces.sampler, held: Mutex::default() });
    Ok(())
}

/// The exporter of this process.
pub(crate) fn exporter() -> Option<&'static Exporter> {
    SINK.get().map(|sink| &sink.exporter)
}

/// Whether spans are exported.
pub fn trace_enabled() -> bool {
    SINK.get().is_some()
}

/// Whether the trace is selected at its start; false when tracing is off. `parent` is the context that the publisher
/// sent with its request.
pub fn selects(trace: TraceId, parent: Option<SpanContext>) -> bool {
    SINK.get().is_some_and(|sink| sink.sampler.selects(trace, parent))
}

/// Whether every trace is selected at its start, so that no spans are held.
pub fn selects_all() -> bool {
    SINK.get().is_some_and(|sink| sink.sampler == Sampler::Ratio(1.0))
}

/// Exports a span of a selected trace; holds another one until its trace is kept. Does nothing when tracing is off.
pub fn export(span: Span) {
    let Some(sink) = SINK.get() else { return };
    let span = if span.context.sampled { Some(span) } else { sink.held.lock().hold(span, Instant::now()) };
    if let Some(span) = span {
        sink.exporter.send(span);
    }
}

/// Exports the spans held of a trace, and all that follow in the next ten minutes. Does nothing when tracing is off.
pub fn keep(trace: TraceId) {
    let Some(sink) = SINK.get() else { return };
    let spans = sink.held.lock().keep(trace, Instant::now());
    for span in spans {
        sink.exporter.send(span);
    }
}
