//! The trace of a build request.

use bus::{Bus, Published};
use model::Build;
use telemetry::spans;
use trace::BuildTrace;

/// The trace context that the build continues: the client's.
pub(crate) fn trace(message: &Published) -> Option<String> {
    message.traceparent().filter(|text| spans::is_valid_traceparent(text)).map(str::to_owned)
}

/// Exports the span of the acceptance of a build, which ends now.
pub(crate) fn enqueued(bus: &Bus, build: &Build) {
    if spans::trace_enabled() {
        spans::export(BuildTrace::of(build).enqueued(build, bus.clock().system_time()));
    }
}
