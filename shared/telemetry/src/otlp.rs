//! Export of spans by OTLP over HTTP.
//!
//! The SDK's batch processor exports from its own thread and blocks there, so that flushing needs no tokio runtime.
//! The client has to be the blocking one of reqwest, which has its own runtime.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use reqwest::blocking::Client;

use crate::settings::{Settings, Traces};

/// Maximum number of spans held for export. The SDK's default of 2048 overflows during the export of one batch at the
/// rates of a busy build farm.
const QUEUE: usize = 8192;

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OtlpError {
    #[error("cannot set up the HTTP client")]
    Client(#[source] reqwest::Error),
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    #[error("setting up the HTTP client panicked")]
    Panicked,
    #[error("cannot set up the OTLP exporter")]
    Exporter(#[from] ExporterBuildError),
}

/// A provider that exports to `traces`.
pub(crate) fn provider(settings: &Settings, traces: &Traces) -> Result<SdkTracerProvider, OtlpError> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client(&traces.endpoint, traces.timeout)?)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(&traces.endpoint)
        .with_timeout(traces.timeout)
        .build()?;
    let mut batches = BatchConfigBuilder::default();
    if std::env::var_os("OTEL_BSP_MAX_QUEUE_SIZE").is_none() {
        batches = batches.with_max_queue_size(QUEUE);
    }
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches.build()).build();
    Ok(SdkTracerProvider::builder()
        .with_span_processor(processor)
        .with_resource(resource(settings, traces))
        .build())
}

/// Attributes of this process; those from the environment override those of Forebay.
fn resource(settings: &Settings, traces: &Traces) -> Resource {
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

fn client(endpoint: &str, timeout: Duration) -> Result<Client, OtlpError> {
    // reqwest panics without a provider, even for plain http. A provider set by others stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder().timeout(timeout).redirect(reqwest::redirect::Policy::none());
    if !endpoint.starts_with("https:") {
        // Loading the system's certificates fails on systems that have none.
        builder = builder.tls_certs_only([]);
    }
    // A blocking client must not be built on a thread of an async runtime.
    std::thread::Builder::new()
        .spawn(move || builder.build())
        .map_err(OtlpError::Thread)?
        .join()
        .map_err(|_| OtlpError::Panicked)?
        .map_err(OtlpError::Client)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    use opentelemetry::trace::{Tracer as _, TracerProvider as _};

    use super::provider;
    use crate::guard::guard_of;
    use crate::settings::{Settings, Traces};
    use crate::{Guard, LogFormat};

    fn guard_with_a_span(endpoint: String) -> Guard {
        let settings = Settings::from_lookup("test", "t1", LogFormat::Text, |_| None);
        let traces = Traces { endpoint, timeout: Duration::from_secs(10), service_name: None };
        let provider = provider(&settings, &traces).unwrap();
        drop(provider.tracer("test").start("a-span"));
        guard_of(provider)
    }

    #[test]
    fn dropping_the_guard_flushes_without_a_runtime() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let collector = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            let mut part = [0; 4096];
            while !seen.windows(6).any(|bytes| bytes == b"a-span") {
                let read = stream.read(&mut part).unwrap();
                assert_ne!(read, 0, "closed before the span came");
                seen.extend_from_slice(&part[..read]);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            String::from_utf8_lossy(&seen).into_owned()
        });
        drop(guard_with_a_span(endpoint));
        let seen = collector.join().unwrap();
        assert!(seen.starts_with("POST /v1/traces"));
        assert!(seen.contains("application/x-protobuf") && seen.contains("forebay-test"));
    }

    #[test]
    fn a_silent_collector_does_not_hold_up_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let guard = guard_with_a_span(format!("http://{}", listener.local_addr().unwrap()));
        let start = Instant::now();
        drop(guard);
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn a_missing_collector_does_not_hold_up_the_end() {
        let guard = guard_with_a_span("http://127.0.0.1:1".to_owned());
        let start = Instant::now();
        guard.shutdown().await;
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }

    #[test]
    fn https_needs_no_setup_by_the_caller() {
        // May fail only because system certificates are missing, never because a TLS provider is missing.
        match super::client("https://collector.example", Duration::from_secs(1)) {
            Ok(_) | Err(super::OtlpError::Client(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
}
