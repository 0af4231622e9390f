//! Export by OTLP, over HTTP or gRPC.

use opentelemetry::trace::{
    Event, Link, SpanContext as OtelContext, SpanId as OtelSpanId, SpanKind as OtelKind, Status, TraceFlags,
    TraceId as OtelTraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol as OtlpProtocol, RetryPolicy, SpanExporter, WithExportConfig,
    WithHttpConfig, WithTonicConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};

use super::span::{Attribute, LINKS_MAX, Span, SpanKind};
use crate::settings::{Protocol, Settings, Traces};
use crate::trace_context::SpanContext;

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OtlpError {
    #[error("cannot set up the HTTP client")]
    Client(#[source] reqwest::Error),
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    #[error("setting up the OTLP exporter panicked")]
    Panicked,
    #[error("cannot set up the OTLP exporter")]
    Exporter(#[from] ExporterBuildError),
}

/// A connection to a collector.
#[derive(Debug)]
pub(crate) struct Otlp {
    exporter: SpanExporter,
    endpoint: String,
}

impl Otlp {
    /// Must be called inside of the runtime that exports.
    pub(crate) fn new(traces: &Traces, resource: &Resource) -> Result<Self, OtlpError> {
        // rustls panics without a provider, even for plain http. A provider set by others stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = SpanExporter::builder();
        // Retries are left to `Sender`: those of the exporter would make a dead collector slower still.
        let mut exporter = match traces.protocol {
            Protocol::Http => builder
                .with_http()
                .with_http_client(client(&traces.endpoint)?)
                .with_protocol(OtlpProtocol::HttpBinary)
                .with_endpoint(&traces.endpoint)
                .with_timeout(traces.timeout)
                .with_retry_policy(RetryPolicy::disabled())
                .build()?,
            Protocol::Grpc => builder
                .with_tonic()
                .with_endpoint(&traces.endpoint)
                .with_timeout(traces.timeout)
                .with_retry_policy(RetryPolicy::disabled())
                .build()?,
        };
        exporter.set_resource(resource);
        Ok(Self { exporter, endpoint: traces.endpoint.clone() })
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.exporter.export(batch).await
    }
}

fn client(endpoint: &str) -> Result<reqwest::Client, OtlpError> {
    let mut builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    if !endpoint.starts_with("https:") {
        // Loading the system's certificates fails on systems that have none.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(OtlpError::Client)
}

/// Attributes of this process; those from the environment override those of Forebay.
pub(crate) fn resource(settings: &Settings, traces: &Traces) -> Resource {
    let ours = [
        KeyValue::new("service.name", format!("forebay-{}", settings.service)),
        KeyValue::new("service.instance.id", settings.instance.clone()),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
    ];
    let named = traces.service_name.clone().map(|name| KeyValue::new("service.name", name));
    Resource::builder_empty()
        .with_attributes(ours)
        .with_detectors(&[Box::new(TelemetryResourceDetector), Box::new(EnvResourceDetector::new())])
        .with_attributes(named)
        .build()
}

/// The span as the exporter takes it.
pub(crate) fn data(span: Span) -> SpanData {
    let end = span.end.max(span.start);
    let mut links = SpanLinks::default();
    links.dropped_count = u32::try_from(span.links.len().saturating_sub(LINKS_MAX)).unwrap_or(u32::MAX);
    links.links = span.links.iter().take(LINKS_MAX).map(|to| Link::with_context(context(to))).collect();
    let mut events = SpanEvents::default();
    events.events = span.events.into_iter().map(|(at, name)| Event::new(name, at, Vec::new(), 0)).collect();
    let parent = span.parent.map_or(OtelSpanId::INVALID, |it| OtelSpanId::from_bytes(it.to_bytes()));
    SpanData {
        // Exported spans are sampled, whenever that was decided.
        span_context: context(&SpanContext { sampled: true, ..span.context }),
        parent_span_id: parent,
        parent_span_is_remote: true,
        span_kind: match span.kind {
            SpanKind::Internal => OtelKind::Internal,
            SpanKind::Server => OtelKind::Server,
            SpanKind::Client => OtelKind::Client,
            SpanKind::Producer => OtelKind::Producer,
            SpanKind::Consumer => OtelKind::Consumer,
        },
        name: span.name,
        start_time: span.start,
        end_time: end,
        attributes: span.attributes.into_iter().map(|(name, it)| KeyValue::new(name, value(it))).collect(),
        dropped_attributes_count: 0,
        events,
        links,
        status: span.error.map_or(Status::Unset, Status::error),
        instrumentation_scope: InstrumentationScope::builder("forebay").build(),
    }
}

fn context(of: &SpanContext) -> OtelContext {
    let flags = if of.sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    OtelContext::new(
        OtelTraceId::from_bytes(of.trace.to_bytes()),
        OtelSpanId::from_bytes(of.span.to_bytes()),
        flags,
        false,
        TraceState::default(),
    )
}

fn value(attribute: Attribute) -> Value {
    match attribute {
        Attribute::Text(text) => Value::String(StringValue::from(text)),
        Attribute::Number(number) => Value::I64(number),
        Attribute::Fraction(number) => Value::F64(number),
        Attribute::Flag(flag) => Value::Bool(flag),
    }
}
