//! The thread that exports spans, so that no other thread ever waits for a collector.

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Runtime;

use super::otlp::{Otlp, OtlpError, data};
use super::span::Span;
use crate::metrics::{Counter, Label, count};
use crate::settings::{Batches, Traces};

/// First and longest pause in which spans are dropped without another try, after an export failed.
const PAUSE_FIRST: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A queue of spans and the thread that exports them.
#[derive(Debug)]
pub(crate) struct Exporter {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when the queue is no longer empty, has a full batch, or is to be flushed.
    wake: Condvar,
    /// Notified when the queue was exported.
    exported: Condvar,
    batches: Batches,
}

#[derive(Debug, Default)]
struct Queue {
    spans: Vec<Span>,
    /// Set from a flush until the queue was exported.
    flush: bool,
}

impl Exporter {
    /// Starts the thread that exports.
    pub(crate) fn start(traces: &Traces, resource: Resource) -> Result<Self, OtlpError> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
            exported: Condvar::new(),
            batches: traces.batches,
        });
        let (of_thread, traces) = (shared.clone(), traces.clone());
        let (started, has_started) = std::sync::mpsc::sync_channel(1);
        let thread = move || match Sender::new(&traces, &resource) {
            Ok(sender) => {
                // The caller waits for it.
                let _ = started.send(Ok(()));
                of_thread.run(sender);
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        };
        std::thread::Builder::new().name("spans".to_owned()).spawn(thread).map_err(OtlpError::Thread)?;
        has_started.recv().unwrap_or(Err(OtlpError::Panicked))?;
        Ok(Self { shared })
    }

    /// Queues the span, or drops and counts it if the queue is full.
    pub(crate) fn send(&self, span: Span) {
        let Shared { queue, wake, batches, .. } = &*self.shared;
        let mut queue = queue.lock();
        if queue.spans.len() >= batches.queue_max {
            drop(queue);
            dropped("queue_full", 1);
            return;
        }
        queue.spans.push(span);
        // Not for every span: each notification costs a switch of threads.
        if queue.spans.len() == 1 || queue.spans.len() == batches.batch_max {
            wake.notify_one();
        }
    }

    /// Exports what is queued, for at most `limit`. False if that did not suffice.
    pub(crate) fn flush(&self, limit: Duration) -> bool {
        let Shared { queue, wake, exported, .. } = &*self.shared;
        let mut queue = queue.lock();
        queue.flush = true;
        wake.notify_one();
        let deadline = Instant::now() + limit;
        while queue.flush {
            if exported.wait_until(&mut queue, deadline).timed_out() {
                return !queue.flush;
            }
        }
        true
    }
}

impl Shared {
    fn run(&self, mut sender: Sender) {
        loop {
            let mut queue = self.queue.lock();
            while queue.spans.is_empty() && !queue.flush {
                self.wake.wait(&mut queue);
            }
            let deadline = Instant::now() + self.batches.delay;
            while queue.spans.len() < self.batches.batch_max && !queue.flush {
                if self.wake.wait_until(&mut queue, deadline).timed_out() {
                    break;
                }
            }
            let spans = std::mem::take(&mut queue.spans);
            let flush = queue.flush;
            drop(queue);
            let mut spans = spans.into_iter();
            loop {
                let batch: Vec<SpanData> = spans.by_ref().take(self.batches.batch_max).map(data).collect();
                if batch.is_empty() {
                    break;
                }
                sender.send(batch);
            }
            if flush {
                self.queue.lock().flush = false;
                self.exported.notify_all();
            }
        }
    }
}

/// Sends batches to the collector, and pauses while it does not take them.
struct Sender {
    runtime: Runtime,
    otlp: Otlp,
    timeout: Duration,
    failure: Option<Failure>,
}

/// A collector that does not take spans.
struct Failure {
    pause: Duration,
    until: Instant,
    dropped: u64,
}

impl Sender {
    /// Must be called on the thread that exports, which must not belong to a runtime.
    fn new(traces: &Traces, resource: &Resource) -> Result<Self, OtlpError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(OtlpError::Thread)?;
        // The gRPC exporter can only be made inside of its runtime.
        let otlp = runtime.block_on(async { Otlp::new(traces, resource) })?;
        Ok(Self { runtime, otlp, timeout: traces.timeout, failure: None })
    }

    fn send(&mut self, batch: Vec<SpanData>) {
        let spans = batch.len() as u64;
        if let Some(failure) = &mut self.failure
            && Instant::now() < failure.until
        {
            failure.dropped += spans;
            dropped("collector_away", spans);
            return;
        }
        let export = async { tokio::time::timeout(self.timeout, self.otlp.export(batch)).await };
        let error = match self.runtime.block_on(export) {
            Ok(Ok(())) => {
                count(Counter::SpansExported, &[], spans);
                if let Some(failure) = self.failure.take() {
                    tracing::info!(dropped = failure.dropped, "spans are exported again");
                }
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {:?}", self.timeout),
        };
        dropped("collector_away", spans);
        let now = Instant::now();
        if let Some(failure) = &mut self.failure {
            failure.dropped += spans;
            failure.pause = (failure.pause * 2).min(PAUSE_MAX);
            failure.until = now + failure.pause;
        } else {
            let endpoint = self.otlp.endpoint();
            tracing::warn!(
                endpoint,
                error,
                "spans cannot be exported; they are dropped until the collector answers"
            );
            self.failure = Some(Failure { pause: PAUSE_FIRST, until: now + PAUSE_FIRST, dropped: spans });
        }
    }
}

fn dropped(why: &str, spans: u64) {
    count(Counter::SpansDropped, &[(Label::Reason, why)], spans);
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::time::SystemTime;

    use super::*;
    use crate::settings::{Protocol, Settings};
    use crate::spans::{Sampler, SpanContext, SpanId, TraceId, otlp};
    use crate::{LogFormat, metrics};

    fn exporter(endpoint: String, batches: Batches) -> Exporter {
        let traces = Traces {
            endpoint,
            protocol: Protocol::Http,
            timeout: Duration::from_secs(10),
            batches,
            sampler: Sampler::Ratio(1.0),
            service_name: None,
        };
        let settings = Settings::from_lookup("test", "t1", LogFormat::Text, |_| None);
        Exporter::start(&traces, otlp::resource(&settings, &traces)).unwrap()
    }

    fn span() -> Span {
        let context = SpanContext {
            trace: TraceId::from_bytes([1; 16]),
            span: SpanId::from_bytes([2; 8]),
            sampled: true,
        };
        Span::new(context, None, "a-span", SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH)
    }

    /// Reads a request whose body names the span.
    fn read(stream: &mut TcpStream) -> String {
        let mut seen = Vec::new();
        let mut part = [0; 4096];
        while !seen.windows(6).any(|bytes| bytes == b"a-span") {
            let read = stream.read(&mut part).unwrap();
            assert_ne!(read, 0, "closed before the span came");
            seen.extend_from_slice(&part[..read]);
        }
        String::from_utf8_lossy(&seen).into_owned()
    }

    fn dropped(why: &str) -> bool {
        metrics::render().contains(&format!("forebay_spans_dropped_total{{reason=\"{why}\""))
    }

    #[test]
    fn a_flush_exports_what_is_queued() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let exporter = exporter(format!("http://{}/in", listener.local_addr().unwrap()), Batches::default());
        let collector = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let seen = read(&mut stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            seen
        });
        exporter.send(span());
        assert!(exporter.flush(Duration::from_secs(30)));
        let seen = collector.join().unwrap();
        assert!(seen.starts_with("POST /in"), "{seen}");
        assert!(seen.contains("application/x-protobuf") && seen.contains("forebay-test"), "{seen}");
    }

    #[test]
    fn a_silent_collector_holds_up_neither_the_end_nor_a_sender() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let batches = Batches { queue_max: 10, ..Batches::default() };
        let exporter = exporter(format!("http://{}", listener.local_addr().unwrap()), batches);
        let start = Instant::now();
        exporter.send(span());
        assert!(!exporter.flush(Duration::from_millis(100)));
        for _ in 0..20 {
            exporter.send(span());
        }
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        assert!(dropped("queue_full"));
    }

    #[test]
    fn a_missing_collector_costs_its_spans_only() {
        let exporter = exporter("http://127.0.0.1:1".to_owned(), Batches::default());
        for _ in 0..3 {
            exporter.send(span());
            assert!(exporter.flush(Duration::from_secs(30)));
        }
        assert!(dropped("collector_away"));
    }
}
