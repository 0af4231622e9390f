//! Traces and metrics as collectors receive them.

use std::{collections::BTreeMap, sync::Arc};

use axum::{body::Bytes, routing::post};
use farm::{Farm, SOON};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::any_value::Value,
    trace::v1::{ResourceSpans, Span},
};
use parking_lot::Mutex;
use prost::Message as _;

use crate::check::{BOUND, ended, script, until};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

type Inbox = Arc<Mutex<Vec<ResourceSpans>>>;

async fn collector() -> (String, Inbox) {
    let inbox = Inbox::default();
    let kept = inbox.clone();
    let take = post(async move |body: Bytes| {
        kept.lock().extend(ExportTraceServiceRequest::decode(body).unwrap().resource_spans);
        ""
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, axum::Router::new().route("/v1/traces", take)).await });
    (endpoint, inbox)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Returns the spans of our trace, by service and name.
fn spans(inbox: &Inbox) -> BTreeMap<(String, String), Span> {
    let mut all = BTreeMap::new();
    for resource in inbox.lock().iter() {
        let attributes = &resource.resource.as_ref().unwrap().attributes;
        let name = attributes.iter().find(|entry| entry.key == "service.name").unwrap();
        let Some(Value::StringValue(service)) = name.value.clone().unwrap().value else { panic!("{name:?}") };
        let spans = resource.scope_spans.iter().flat_map(|scope| &scope.spans);
        for span in spans.filter(|span| hex(&span.trace_id) == TRACE) {
            all.insert((service.clone(), span.name.clone()), span.clone());
        }
    }
    all
}

#[tokio::test]
async fn one_trace_goes_from_the_publish_to_the_command() {
    let (endpoint, inbox) = collector().await;
    let farm = Farm::builder()
        .without("gateway")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .start()
        .await;
    let id = model::BuildId::generate();
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Nats-Msg-Id", id.to_string());
    headers.insert("traceparent", PARENT);
    let request = model::BuildRequest { id: Some(id), ..script("echo $TRACEPARENT") };
    let payload = serde_json::to_vec(&request).unwrap();
    let subject = "forebay.build.request.g.interactive";
    let sent = farm.bus().jetstream().publish_with_headers(subject, headers, payload.into()).await;
    sent.unwrap().await.unwrap();
    let key = model::BuildKey { group: "g".parse().unwrap(), id };
    ended(&farm, &key).await;

    let wanted =
        [("enqueuer", "enqueue"), ("worker", "queued"), ("worker", "invocation"), ("worker", "command")];
    let named = wanted.map(|(service, name)| (format!("forebay-{service}"), name.to_owned()));
    until("the spans come", SOON, || named.iter().all(|name| spans(&inbox).contains_key(name))).await;
    let all = spans(&inbox);
    let [enqueue, queued, invocation, command] = named.map(|name| all[&name].clone());
    assert_eq!(hex(&enqueue.parent_span_id), "b7ad6b7169203331");
    assert_eq!(queued.parent_span_id, enqueue.span_id);
    assert_eq!(invocation.parent_span_id, enqueue.span_id);
    assert_eq!(command.parent_span_id, invocation.span_id);
    let started = |span: &Span| span.start_time_unix_nano;
    assert!(started(&enqueue) <= started(&invocation) && started(&invocation) <= started(&command));
    // The command continues the trace.
    let console = farm.wait_event(&key, BOUND, &[bus::EventKind::Console], |_| true).await;
    let client::WatchBody::Console(chunk) = console.body else { panic!("{console:?}") };
    let text = String::from_utf8(chunk.data.to_vec()).unwrap();
    assert_eq!(text.trim(), format!("00-{TRACE}-{}-01", hex(&command.span_id)));
}

#[tokio::test]
async fn every_service_has_metrics_of_what_it_did() {
    let farm = Farm::all().await;
    let key = farm.submit("g", script("echo x")).await;
    ended(&farm, &key).await;
    farm.publish("g", model::Priority::Batch, &model::BuildRequest { command: vec![], ..script("") }).await;
    let http = crate::http::client();
    let mut all = String::new();
    for (service, url) in farm.metrics_urls() {
        let text = http.get(&url).send().await.unwrap().text().await.unwrap();
        assert!(text.ends_with("# EOF\n"), "{service}: {text}");
        let health = http.get(url.replace("/metrics", "/healthz")).send().await.unwrap();
        assert!(health.status().is_success(), "{service}: {}", health.status());
        all += &text;
    }
    assert_eq!(farm.metrics_urls().len(), 5);
    for (name, least) in [
        ("forebay_builds_enqueued_total", 1.0),
        ("forebay_invocations_started_total", 1.0),
        ("forebay_builds_finished_total", 1.0),
        ("forebay_console_bytes_total", 2.0),
        ("forebay_index_applied_total", 3.0),
    ] {
        let values = all.lines().filter(|line| line.starts_with(name));
        let sum: f64 = values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        assert!(sum >= least, "{name} is {sum}");
    }
}
