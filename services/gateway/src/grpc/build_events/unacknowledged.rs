//! How long build events wait for their acknowledgement, as a metric.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use telemetry::metrics::{Gauge, Readings};
use tokio::time::Instant;

/// The time of the oldest event of each stream that is not acknowledged. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Unacknowledged {
    streams: Arc<Mutex<HashMap<u64, Instant>>>,
    last: Arc<AtomicU64>,
}

impl Unacknowledged {
    /// Reads the metric at each scrape from now on.
    pub(super) fn report(&self) {
        let streams = Arc::clone(&self.streams);
        telemetry::on_scrape(move || {
            let oldest = streams.lock().values().min().map_or(0, |since| since.elapsed().as_secs());
            let mut readings = Readings::default();
            readings.add(Gauge::BesOldestUnackedSeconds, &[], oldest);
            std::future::ready(Some(readings))
        });
    }

    /// An event has come; it is acknowledged when the guard is dropped.
    pub(super) fn begin(&self, since: Instant) -> Waiting {
        let stream = self.last.fetch_add(1, Ordering::Relaxed);
        self.streams.lock().insert(stream, since);
        Waiting { streams: Arc::clone(&self.streams), stream }
    }
}

/// Events of a stream that wait for their acknowledgement.
pub(super) struct Waiting {
    streams: Arc<Mutex<HashMap<u64, Instant>>>,
    stream: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.streams.lock().remove(&self.stream);
    }
}
