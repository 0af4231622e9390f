//! How many calls of `Execute` the trace of a client's span shows. A trace of tens of thousands of spans can be
//! read by no viewer; further calls are in the traces of their executions, and counted in spans that link there.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bus::Bus;
use parking_lot::Mutex;
use telemetry::spans::{self, SpanContext, SpanId};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use trace::{Call, FurtherCalls};

/// Maximum number of spans of clients whose calls are counted; the calls of others are all shown.
const CLIENTS_MAX: usize = 10_000;
/// After this time without a call, a client's calls are forgotten if there are too many clients.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Calls are exported after this time without one.
const QUIET: Duration = Duration::from_secs(1);
/// Longest time between the exports of calls that follow each other without a pause.
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// The calls of each client, counted by the span that it stated.
#[derive(Debug, Clone)]
pub(crate) struct TraceBudget {
    bus: Bus,
    /// Number of calls that are shown one by one. 0: all.
    shown_max: u32,
    clients: Arc<Mutex<HashMap<SpanContext, Calls>>>,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Calls {
    count: u32,
    last: Instant,
    /// Further calls that are not exported yet, and the time of the first.
    further: Option<(Instant, FurtherCalls)>,
    /// Shortest time until the next export, which doubles with each.
    interval: Duration,
    is_exporting: bool,
}

impl TraceBudget {
    pub(crate) fn new(bus: Bus, shown_max: u32, stop: CancellationToken) -> Self {
        Self { bus, shown_max, clients: Arc::default(), stop }
    }

    /// Counts a call; returns whether it is shown in the trace of its client.
    pub(crate) fn shows(&self, client: SpanContext) -> bool {
        if self.shown_max == 0 || !spans::trace_enabled() {
            return true;
        }
        let now = Instant::now();
        let mut clients = self.clients.lock();
        if clients.len() >= CLIENTS_MAX && !clients.contains_key(&client) {
            clients.retain(|_, calls| calls.further.is_some() || now - calls.last < FORGOTTEN_AFTER);
            if clients.len() >= CLIENTS_MAX {
                return true;
            }
        }
        let calls = clients.entry(client).or_insert_with(|| Calls {
            count: 0,
            last: now,
            further: None,
            interval: QUIET,
            is_exporting: false,
        });
        (calls.count, calls.last) = (calls.count.saturating_add(1), now);
        calls.count <= self.shown_max
    }

    /// Adds a call that is not shown, after it has ended.
    pub(crate) fn add(&self, client: SpanContext, call: &Call, at: SystemTime, failed: bool) {
        let now = Instant::now();
        let mut clients = self.clients.lock();
        let Some(calls) = clients.get_mut(&client) else { return };
        calls.last = now;
        let (_, further) = calls.further.get_or_insert_with(|| (now, FurtherCalls::since(call.started)));
        further.add(call, at, failed);
        if !calls.is_exporting {
            calls.is_exporting = true;
            tokio::spawn(self.clone().export(client));
        }
    }

    /// Exports the further calls of a client until there are none.
    async fn export(self, client: SpanContext) {
        while let Some(due) = self.due(client) {
            tokio::select! {
                () = sleep(due) => {}
                () = self.stop.cancelled() => {
                    self.take(client);
                    return;
                }
            }
        }
    }

    /// Exports what is due; returns when to look again.
    fn due(&self, client: SpanContext) -> Option<Duration> {
        let now = Instant::now();
        let mut clients = self.clients.lock();
        let calls = clients.get_mut(&client)?;
        let Some((since, _)) = &calls.further else {
            calls.is_exporting = false;
            return None;
        };
        // Quiet, but not more often than the interval; at last after a longer one.
        let at = (calls.last + QUIET).min(*since + INTERVAL_MAX).max(*since + calls.interval);
        if at > now {
            return Some(at - now);
        }
        calls.interval = (calls.interval * 2).min(INTERVAL_MAX);
        drop(clients);
        self.take(client);
        Some(QUIET)
    }

    fn take(&self, client: SpanContext) {
        let taken = self.clients.lock().get_mut(&client).and_then(|calls| calls.further.take());
        let Some((_, further)) = taken else { return };
        let sampled = spans::selects(client.trace, Some(client));
        let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
        spans::export(
            further.span(SpanContext { sampled, ..client }, SpanId::from_bytes(random.to_be_bytes())),
        );
    }

    pub(crate) fn now(&self) -> SystemTime {
        self.bus.clock().system_time()
    }
}
