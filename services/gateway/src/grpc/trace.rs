//! The trace of an execution: the client's, or a new one that starts here.

use tonic::metadata::MetadataMap;
use tracing::Span;

/// The span of an execution at the gateway, and the trace context passed on with it.
#[derive(Debug, Clone)]
pub(crate) struct ExecuteTrace {
    /// Ends when its last owner drops it.
    pub(crate) span: Span,
    /// `traceparent` for the processes that work on the execution.
    pub(crate) parent: String,
}

impl ExecuteTrace {
    /// The trace of a request: that of its `traceparent` header, or a new one.
    pub(crate) fn of(headers: &MetadataMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let given = text("traceparent").filter(|parent| telemetry::is_valid_traceparent(parent));
        // Costs one atomic load when tracing is off.
        let span = tracing::debug_span!("execute", execution = tracing::field::Empty);
        telemetry::set_parent(&span, given, text("tracestate"));
        let parent = telemetry::context_of(&span)
            .map(|context| context.traceparent)
            .or_else(|| given.map(str::to_owned))
            .unwrap_or_else(begin);
        Self { span, parent }
    }
}

/// An unsampled trace, whose id still links the log lines of one execution.
fn begin() -> String {
    let trace = uuid::Uuid::new_v4().simple();
    let span = uuid::Uuid::new_v4().as_u64_pair().0;
    format!("00-{trace}-{span:016x}-00")
}

/// The trace id of a `traceparent`.
pub(crate) fn id_of(traceparent: &str) -> Option<&str> {
    traceparent.split('-').nth(1).filter(|id| id.len() == 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_continued_or_begun() {
        let given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let mut headers = MetadataMap::new();
        headers.insert("traceparent", given.parse().unwrap());
        assert_eq!(ExecuteTrace::of(&headers).parent, given);
        headers.insert("traceparent", "nonsense".parse().unwrap());
        let begun = ExecuteTrace::of(&headers).parent;
        assert!(telemetry::is_valid_traceparent(&begun), "{begun}");
        assert_eq!(id_of(&begun).unwrap().len(), 32);
        assert_eq!(id_of("x"), None);
    }
}
