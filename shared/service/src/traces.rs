//! Exports what the crate `trace` makes, and keeps the traces that turn out to be worth it in all processes.

use bus::Bus;
use model::{BuildRecord, ExecutionRecord, KeepTrace};
use telemetry::spans;
use tracing::debug;

/// Exports the spans of what ended when `after` was written as the record that follows `before`.
pub fn trace_run_ended(bus: &Bus, before: &BuildRecord, after: &BuildRecord) {
    if spans::trace_enabled() {
        export(bus, trace::run_ended(before, after));
    }
}

/// Exports the spans of a copy of an execution that ended.
pub fn trace_copy_ended(bus: &Bus, ended: &trace::Ended<'_>, times: &trace::CopyTimes) {
    if spans::trace_enabled() {
        export(bus, trace::copy_ended(ended, times));
    }
}

/// Exports the span of an execution that ended without a copy.
pub fn trace_execution_ended(bus: &Bus, after: &ExecutionRecord) {
    if spans::trace_enabled() {
        export(bus, trace::ended_alone(after));
    }
}

fn export(bus: &Bus, made: trace::Made) {
    for span in made.spans {
        spans::export(span);
    }
    let Some(trace) = made.keep else { return };
    spans::keep(trace);
    let bus = bus.clone();
    tokio::spawn(async move { bus.send_or_log(&(), &KeepTrace { trace: trace.to_string() }).await });
}

/// Exports the spans that this process holds of traces that others keep, until the connection ends.
pub(crate) async fn follow_kept_traces(bus: Bus) {
    if !spans::trace_enabled() || spans::selects_all() {
        return;
    }
    let mut kept = match bus.listen::<KeepTrace>(&()).await {
        Ok(kept) => kept,
        Err(error) => {
            debug!(error = telemetry::error_chain(&error), "traces that others keep stay incomplete");
            return;
        }
    };
    while let Some(message) = kept.next().await {
        if let Ok(trace) = message.content.trace.parse() {
            spans::keep(trace);
        }
    }
}
