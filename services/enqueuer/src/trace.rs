//! The trace context of a build.

use bus::Published;

/// The trace context that the build continues: our span if tracing is on, else the client's.
pub(crate) fn trace(message: &Published) -> Option<String> {
    let ours = telemetry::current().map(|context| context.traceparent);
    ours.or_else(|| {
        message.traceparent().filter(|text| telemetry::is_valid_traceparent(text)).map(str::to_owned)
    })
}
