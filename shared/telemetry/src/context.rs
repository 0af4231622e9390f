//! W3C trace context, as carried by messages.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::guard::trace_enabled;

/// Place of a span in its trace, in the terms of W3C trace context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// Value of `traceparent`, which identifies trace and span.
    pub traceparent: String,
    /// Value of `tracestate`; absent if there is none.
    pub tracestate: Option<String>,
}

/// The context of the current span; none when tracing is off or no span is current.
pub fn current() -> Option<TraceContext> {
    // Span::current has a cost, which is avoided when tracing is off.
    if trace_enabled() { context_of(&Span::current()) } else { None }
}

/// The context of `span`; none when tracing is off or the span is not exported.
pub fn context_of(span: &Span) -> Option<TraceContext> {
    if !trace_enabled() {
        return None;
    }
    let context = span.context();
    let exported = context.span();
    let span_context = exported.span_context();
    if !span_context.is_valid() {
        return None;
    }
    let tracestate = Some(span_context.trace_state().header()).filter(|state| !state.is_empty());
    Some(TraceContext { traceparent: format_traceparent(span_context), tracestate })
}

/// Makes `span` a child of the span that a message named.
///
/// Must be called before the first child of `span` and before [`current`] or [`context_of`] reads its context. A
/// malformed `traceparent` is ignored, as is a malformed `tracestate` alone. Does nothing when tracing is off.
pub fn set_parent(span: &Span, traceparent: Option<&str>, tracestate: Option<&str>) {
    if !trace_enabled() {
        return;
    }
    if let Some(context) = remote_context(traceparent, tracestate) {
        // Fails for a span that is filtered out or already started: it then keeps its parent.
        let _ = span.set_parent(context);
    }
}

/// Whether `text` is a `traceparent` as W3C trace context defines it.
pub fn is_valid_traceparent(text: &str) -> bool {
    parse_traceparent(text).is_some()
}

/// The OpenTelemetry context that a message named, if it is well-formed.
pub(crate) fn remote_context(traceparent: Option<&str>, tracestate: Option<&str>) -> Option<Context> {
    let (trace_id, span_id, flags) = parse_traceparent(traceparent?)?;
    let state: TraceState = tracestate.and_then(|text| text.parse().ok()).unwrap_or_default();
    let remote = SpanContext::new(trace_id, span_id, flags, true, state);
    Some(Context::new().with_remote_span_context(remote))
}

/// The `traceparent` that names `context`.
pub(crate) fn format_traceparent(context: &SpanContext) -> String {
    let flags = context.trace_flags() & TraceFlags::SAMPLED;
    format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), flags.to_u8())
}

fn parse_traceparent(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let mut parts = text.split('-');
    let version = hex(parts.next()?, 2)?;
    let trace_id = TraceId::from_hex(hex(parts.next()?, 32)?).ok()?;
    let span_id = SpanId::from_hex(hex(parts.next()?, 16)?).ok()?;
    let flags = u8::from_str_radix(hex(parts.next()?, 2)?, 16).ok()?;
    // Later versions may append fields; version 00 may not, and ff is forbidden.
    let ends_well = version != "00" || parts.next().is_none();
    let valid = version != "ff" && ends_well && trace_id != TraceId::INVALID && span_id != SpanId::INVALID;
    valid.then(|| (trace_id, span_id, TraceFlags::new(flags) & TraceFlags::SAMPLED))
}

fn hex(text: &str, length: usize) -> Option<&str> {
    let proper = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (text.len() == length && text.bytes().all(proper)).then_some(text)
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TraceContextExt as _;

    use super::{format_traceparent, is_valid_traceparent, remote_context};

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn good_ones_survive_the_round_trip() {
        for text in [GOOD, "00-00000000000000000000000000000001-0000000000000001-00"] {
            let context = remote_context(Some(text), Some("a=1,b=2")).unwrap();
            let span = context.span();
            assert_eq!(format_traceparent(span.span_context()), text);
            assert_eq!(span.span_context().trace_state().header(), "a=1,b=2");
            assert!(is_valid_traceparent(text));
        }
        assert!(is_valid_traceparent(&format!("{}-more", GOOD.replacen("00", "01", 1))));
    }

    #[test]
    fn malformed_ones_are_refused() {
        for text in [
            "",
            "00",
            "nonsense",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            "00-é0af7651916cd43dd8448eb211c8031-b7ad6b7169203331-01",
        ] {
            assert!(!is_valid_traceparent(text), "{text}");
            assert!(remote_context(Some(text), None).is_none(), "{text}");
        }
    }

    #[test]
    fn a_malformed_tracestate_does_not_lose_the_parent() {
        let context = remote_context(Some(GOOD), Some("no equals sign")).unwrap();
        assert_eq!(context.span().span_context().trace_state().header(), "");
    }
}
