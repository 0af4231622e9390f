//! The trace that a build is part of.

use bus::traceparent;

/// The trace that the build goes on with: our span when tracing is on, else the client's own.
pub(crate) fn trace(headers: Option<&async_nats::HeaderMap>) -> Option<String> {
    let ours = telemetry::current().map(|context| context.traceparent);
    ours.or_else(|| {
        traceparent(headers).filter(|text| telemetry::is_valid_traceparent(text)).map(str::to_owned)
    })
}
