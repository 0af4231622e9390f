//! Spans as received by a collector.

#![allow(clippy::unwrap_used, reason = "the exemption of tests does not reach their helpers")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span as Exported;
use parking_lot::Mutex;
use prost::Message as _;
use telemetry::spans::{self, Span, SpanContext, SpanId, SpanKind, TraceId};
use telemetry::{LogFormat, Settings};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
type Inbox = Arc<Mutex<Vec<ExportTraceServiceRequest>>>;

async fn collector() -> (String, Inbox) {
    let inbox = Inbox::default();
    let kept = inbox.clone();
    let take = post(async move |body: Bytes| {
        kept.lock().push(ExportTraceServiceRequest::decode(body).unwrap());
        ""
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, axum::Router::new().route("/v1/traces", take)).await });
    (endpoint, inbox)
}

fn texts(attributes: &[KeyValue]) -> HashMap<&str, &str> {
    fn text(entry: &KeyValue) -> Option<&str> {
        if let Value::StringValue(text) = entry.value.as_ref()?.value.as_ref()? { Some(text) } else { None }
    }
    attributes.iter().filter_map(|entry| Some((entry.key.as_str(), text(entry)?))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn nanos(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos().try_into().unwrap()
}

#[tokio::test]
async fn spans_reach_the_collector() {
    let (endpoint, inbox) = collector().await;
    let guard = telemetry::init_with(Settings::from_lookup("test", "t1", LogFormat::Text, |name| {
        (name == "OTEL_EXPORTER_OTLP_ENDPOINT").then(|| endpoint.clone())
    }));
    assert!(spans::trace_enabled());
    let parent: SpanContext = PARENT.parse().unwrap();
    let of = |byte, sampled| SpanContext { span: SpanId::from_bytes([byte; 8]), sampled, ..parent };
    let start = SystemTime::now() - Duration::from_secs(60);
    let end = start + Duration::from_secs(7);
    let queue = Span::new(of(1, true), Some(parent.span), "queue", start, end)
        .kind(SpanKind::Consumer)
        .with("priority", "high")
        .with("attempt", 3_u64)
        .event(start, "accepted")
        .link(of(9, true));
    spans::export(queue);
    let failed = Span::new(of(2, true), None, "failed", end, start).error(Some("no luck".to_owned()));
    spans::export(failed);
    let other = |byte| SpanContext { trace: TraceId::from_bytes([byte; 16]), ..of(3, false) };
    spans::export(Span::new(other(5), None, "kept", start, end));
    spans::export(Span::new(other(6), None, "not worth it", start, end));
    spans::keep(other(5).trace);
    guard.shutdown().await;

    let requests = inbox.lock();
    let resource = requests[0].resource_spans[0].resource.as_ref().unwrap();
    let resource = texts(&resource.attributes);
    assert_eq!((resource["service.name"], resource["service.instance.id"]), ("forebay-test", "t1"));
    let spans: HashMap<&str, &Exported> = requests
        .iter()
        .flat_map(|request| &request.resource_spans)
        .flat_map(|resource| &resource.scope_spans)
        .flat_map(|scope| &scope.spans)
        .map(|span| (span.name.as_str(), span))
        .collect();
    assert_eq!(spans.len(), 3, "{:?}", spans.keys());
    let (queue, failed) = (spans["queue"], spans["failed"]);
    assert_eq!(format!("00-{}-{}-01", hex(&queue.trace_id), hex(&queue.parent_span_id)), PARENT);
    assert_eq!(hex(&queue.span_id), "0101010101010101");
    assert_eq!((queue.start_time_unix_nano, queue.end_time_unix_nano), (nanos(start), nanos(end)));
    assert_eq!(texts(&queue.attributes)["priority"], "high");
    assert_eq!(
        (queue.events[0].name.as_str(), hex(&queue.links[0].span_id).as_str()),
        ("accepted", "0909090909090909")
    );
    assert_eq!(failed.status.as_ref().unwrap().message, "no luck");
    assert_eq!(failed.end_time_unix_nano, failed.start_time_unix_nano);
    assert!(failed.parent_span_id.is_empty());
    assert_eq!(hex(&spans["kept"].trace_id), "05".repeat(16));
}
