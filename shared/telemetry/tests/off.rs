//! A process without an OTLP endpoint, and its HTTP server.

#![allow(clippy::unwrap_used, reason = "the exemption of tests does not reach their helpers")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use telemetry::metrics::{self, Counter};
use telemetry::spans::{self, Span, SpanContext};
use telemetry::{LogFormat, Settings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

async fn get(address: std::net::SocketAddr, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn without_an_endpoint_nothing_is_traced() {
    let settings = Settings::from_lookup("test", "t1", LogFormat::Json, |_| None);
    let guard = telemetry::init_with(settings.clone());
    assert!(!spans::trace_enabled());
    let context: SpanContext = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap();
    assert!(!spans::selects(context.trace, Some(context)));
    spans::export(Span::new(context, None, "unseen", SystemTime::UNIX_EPOCH, SystemTime::now()));
    spans::keep(context.trace);
    guard.shutdown().await;
    drop(telemetry::init_with(settings));
}

#[tokio::test]
async fn metrics_and_health_are_served() {
    static BUS: AtomicBool = AtomicBool::new(false);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, telemetry::metrics_routes()).await });

    metrics::count(Counter::LeasesExpired, &[], 3);
    let answer = get(address, "/metrics").await;
    assert!(answer.starts_with("HTTP/1.0 200") && answer.contains(metrics::CONTENT_TYPE), "{answer}");
    assert!(answer.contains("\nforebay_leases_expired_total 3\n") && answer.ends_with("# EOF\n"));

    assert!(get(address, "/healthz").await.starts_with("HTTP/1.0 503"));
    telemetry::set_ready(true);
    assert!(get(address, "/healthz").await.ends_with("\r\n\r\nok"));
    telemetry::ready_when(|| {
        if BUS.load(Ordering::Relaxed) { Ok(()) } else { Err("the bus is away".to_owned()) }
    });
    let answer = get(address, "/healthz").await;
    assert!(answer.starts_with("HTTP/1.0 503") && answer.ends_with("the bus is away"), "{answer}");
    BUS.store(true, Ordering::Relaxed);
    assert!(get(address, "/healthz").await.starts_with("HTTP/1.0 200"));
    telemetry::set_ready(false);
    assert!(get(address, "/healthz").await.starts_with("HTTP/1.0 503"));
    assert!(get(address, "/other").await.starts_with("HTTP/1.0 404"));
}
