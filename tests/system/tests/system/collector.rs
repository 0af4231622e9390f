//! An OTLP receiver, over HTTP or gRPC, and the traces that it received.

use std::{collections::BTreeMap, sync::Arc};

use axum::{body::Bytes, routing::post};
use farm::Builder;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{ResourceSpans, Span},
};
use parking_lot::Mutex;
use prost::Message as _;
use tonic::{Request, Response, Status, codec::CompressionEncoding, transport::server::TcpIncoming};

/// A receiver on a port of its own.
#[derive(Clone)]
pub(crate) struct Collector {
    endpoint: String,
    protocol: &'static str,
    inbox: Inbox,
}

#[derive(Clone, Default)]
struct Inbox(Arc<Mutex<Vec<ResourceSpans>>>);

/// A span that was received, with the service that sent it.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) service: String,
    pub(crate) span: Span,
}

#[tonic::async_trait]
impl TraceService for Inbox {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().extend(request.into_inner().resource_spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    pub(crate) async fn over_http() -> Self {
        let inbox = Inbox::default();
        let kept = inbox.clone();
        let take = post(async move |body: Bytes| {
            kept.0.lock().extend(ExportTraceServiceRequest::decode(body).unwrap().resource_spans);
            ""
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, axum::Router::new().route("/v1/traces", take)).await });
        Self { endpoint, protocol: "http/protobuf", inbox }
    }

    pub(crate) async fn over_grpc() -> Self {
        let inbox = Inbox::default();
        let service = TraceServiceServer::new(inbox.clone()).accept_compressed(CompressionEncoding::Gzip);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Self { endpoint, protocol: "grpc", inbox }
    }

    /// Makes the services of a farm export to this receiver.
    pub(crate) fn receive(&self, builder: Builder) -> Builder {
        let builder = builder
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", self.endpoint.clone())
            .env("OTEL_EXPORTER_OTLP_PROTOCOL", self.protocol)
            .env("OTEL_BSP_SCHEDULE_DELAY", "50");
        if self.protocol == "grpc" { builder.env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip") } else { builder }
    }

    /// All spans of a trace.
    pub(crate) fn trace(&self, id: &str) -> Vec<Received> {
        let all = self.all();
        all.into_iter().filter(|received| hex(&received.span.trace_id) == id).collect()
    }

    pub(crate) fn all(&self) -> Vec<Received> {
        let mut all = Vec::new();
        for resource in self.inbox.0.lock().iter() {
            let service = text(&resource.resource.as_ref().unwrap().attributes, "service.name").unwrap();
            let spans = resource.scope_spans.iter().flat_map(|scope| &scope.spans);
            all.extend(spans.map(|span| Received { service: service.clone(), span: span.clone() }));
        }
        all
    }
}

impl Received {
    pub(crate) fn name(&self) -> &str {
        &self.span.name
    }

    /// Value of a text attribute.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        text(&self.span.attributes, name)
    }

    /// Value of a number attribute.
    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        let found = self.span.attributes.iter().find(|entry| entry.key == name)?;
        if let Value::IntValue(number) = found.value.as_ref()?.value.as_ref()? { Some(*number) } else { None }
    }

    pub(crate) fn error(&self) -> Option<&str> {
        self.span.status.as_ref().map(|status| status.message.as_str()).filter(|it| !it.is_empty())
    }

    pub(crate) fn nanos(&self) -> u64 {
        self.span.end_time_unix_nano - self.span.start_time_unix_nano
    }

    pub(crate) fn is_child_of(&self, other: &Self) -> bool {
        self.span.parent_span_id == other.span.span_id
    }
}

/// Spans whose parent was not received, except `outside`, the publisher's.
pub(crate) fn orphans<'a>(spans: &'a [Received], outside: &str) -> Vec<&'a Received> {
    let by_id: BTreeMap<&[u8], &Received> =
        spans.iter().map(|received| (received.span.span_id.as_slice(), received)).collect();
    assert_eq!(by_id.len(), spans.len(), "two spans have one id: {:?}", named(spans));
    let is_orphan = |received: &&Received| {
        let parent = received.span.parent_span_id.as_slice();
        !parent.is_empty() && !by_id.contains_key(parent) && hex(parent) != outside
    };
    spans.iter().filter(is_orphan).collect()
}

/// Service and name of each span.
pub(crate) fn named(spans: &[Received]) -> Vec<String> {
    spans.iter().map(|it| format!("{} {}", it.service, it.name())).collect()
}

fn text(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|entry| entry.key == name)?;
    if let Value::StringValue(text) = found.value.as_ref()?.value.as_ref()? {
        Some(text.clone())
    } else {
        None
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}
