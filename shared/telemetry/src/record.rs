//! Spans whose start and end are known only afterwards.

use std::time::SystemTime;

use opentelemetry::KeyValue;
use opentelemetry::trace::{Span as _, SpanBuilder, Status, Tracer as _};

use crate::context::{format_traceparent, remote_context};
use crate::guard::tracer;

/// Exports a span that is already over, as a child of `parent`.
///
/// Without a valid parent it starts a trace. An end before the start, which the clocks of two machines can cause,
/// counts as the start. Does nothing when tracing is off.
pub fn record_span(
    name: &'static str,
    parent: Option<&str>,
    start: SystemTime,
    end: SystemTime,
    attributes: &[(&'static str, String)],
    error: Option<&str>,
) {
    // The text of the context is not worth its allocation here.
    if let Some(mut span) = start_span(name, parent, start, attributes) {
        end_span(&mut span, start, end, error);
    }
}

/// Like [`record_span`], and returns the `traceparent` of the new span, so that it can be a parent. None
/// when tracing is off.
pub fn record_parent_span(
    name: &'static str,
    parent: Option<&str>,
    start: SystemTime,
    end: SystemTime,
    attributes: &[(&'static str, String)],
    error: Option<&str>,
) -> Option<String> {
    let mut span = start_span(name, parent, start, attributes)?;
    end_span(&mut span, start, end, error);
    Some(format_traceparent(span.span_context()))
}

fn start_span(
    name: &'static str,
    parent: Option<&str>,
    start: SystemTime,
    attributes: &[(&'static str, String)],
) -> Option<opentelemetry_sdk::trace::Span> {
    let tracer = tracer()?;
    let context = remote_context(parent, None).unwrap_or_default();
    let attributes = attributes.iter().map(|(key, value)| KeyValue::new(*key, value.clone()));
    let builder = SpanBuilder::from_name(name).with_start_time(start).with_attributes(attributes);
    Some(tracer.build_with_context(builder, &context))
}

fn end_span(
    span: &mut opentelemetry_sdk::trace::Span,
    start: SystemTime,
    end: SystemTime,
    error: Option<&str>,
) {
    if let Some(error) = error {
        span.set_status(Status::error(error.to_owned()));
    }
    span.end_with_timestamp(end.max(start));
}
