//! Spans as received by a collector.

#![allow(clippy::unwrap_used, reason = "the exemption of tests does not reach their helpers")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use prost::Message as _;
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
    assert!(telemetry::trace_enabled());
    assert_eq!(telemetry::current(), None);

    let context = {
        let outer = tracing::debug_span!("outer", build = "b1");
        telemetry::set_parent(&outer, Some(PARENT), Some("vendor=x"));
        let _entered = outer.enter();
        let inner = tracing::info_span!("inner");
        let _entered = inner.enter();
        tracing::info!("something happened");
        telemetry::current().unwrap()
    };
    assert!(telemetry::is_valid_traceparent(&context.traceparent));
    assert_eq!(context.tracestate.as_deref(), Some("vendor=x"));
    {
        let span = tracing::info_span!("orphan");
        telemetry::set_parent(&span, Some("00-broken"), Some("vendor=x"));
    }
    let start = SystemTime::now() - Duration::from_secs(60);
    let end = start + Duration::from_secs(7);
    let attributes = [("priority", "high".to_owned())];
    let queued =
        telemetry::record_parent_span("queued", Some(&context.traceparent), start, end, &attributes, None)
            .unwrap();
    telemetry::record_span("failed", Some(&queued), end, start, &[], Some("no luck"));
    guard.shutdown().await;

    let requests = inbox.lock();
    let resource = requests[0].resource_spans[0].resource.as_ref().unwrap();
    let resource = texts(&resource.attributes);
    assert_eq!((resource["service.name"], resource["service.instance.id"]), ("forebay-test", "t1"));
    let spans: HashMap<&str, &Span> = requests
        .iter()
        .flat_map(|request| &request.resource_spans)
        .flat_map(|resource| &resource.scope_spans)
        .flat_map(|scope| &scope.spans)
        .map(|span| (span.name.as_str(), span))
        .collect();
    assert_eq!(spans.len(), 5, "{:?}", spans.keys());

    let (outer, inner, queued, failed) = (spans["outer"], spans["inner"], spans["queued"], spans["failed"]);
    assert_eq!(format!("00-{}-{}-01", hex(&outer.trace_id), hex(&outer.parent_span_id)), PARENT);
    assert_eq!(texts(&outer.attributes)["build"], "b1");
    assert_eq!(inner.parent_span_id, outer.span_id);
    assert_eq!(inner.events[0].name, "something happened");
    assert_eq!(context.traceparent, format!("00-{}-{}-01", hex(&inner.trace_id), hex(&inner.span_id)));
    assert_eq!((&queued.parent_span_id, &queued.trace_id), (&inner.span_id, &outer.trace_id));
    assert_eq!((queued.start_time_unix_nano, queued.end_time_unix_nano), (nanos(start), nanos(end)));
    assert_eq!(texts(&queued.attributes)["priority"], "high");
    assert_eq!(failed.parent_span_id, queued.span_id);
    assert_eq!(failed.status.as_ref().unwrap().message, "no luck");
    assert_eq!(failed.end_time_unix_nano, failed.start_time_unix_nano);
    assert!(spans["orphan"].parent_span_id.is_empty());
    assert_ne!(spans["orphan"].trace_id, outer.trace_id);
}
