//! The farm's clock: the time of nats-server, as this process knows it. Every record, heartbeat and deadline that
//! another process reads uses it, so the clocks of machines need not agree.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};

use async_nats::Client;
use bytes::Bytes;
use invariant::Present as _;
use model::{Millis, Skew};
use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use serde::{Deserialize, de::DeserializeOwned};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::sync::watch;
use tracing::debug;

use crate::{BusError, codec::from_json, denials::Denials, stream, subject::USER_INFO};

/// The time of nats-server: measured over the connection, and extrapolated between measurements with `CLOCK_BOOTTIME`,
/// which no program can set. Before the first measurement it is this machine's clock. Cheap to clone.
#[derive(Debug, Clone)]
pub struct FarmClock(Arc<State>);

#[derive(Debug)]
struct State {
    /// Microseconds from `CLOCK_BOOTTIME` to the farm's time.
    offset: AtomicI64,
    bounds: Mutex<Option<Bounds>>,
    denials: Denials,
    /// Whether the user may not ask for the time of the leader of the lease stream: tenants may not.
    is_leader_denied: AtomicBool,
}

/// Lower and upper bound of the offset, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    low: i64,
    high: i64,
    /// Time of the measurement by `CLOCK_BOOTTIME`, in microseconds.
    at: i64,
}

/// Interval between measurements while the connection is up.
const MEASURE_INTERVAL: Duration = Duration::from_secs(10);
const MEASURE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum drift between two clocks, in microseconds per second: twice the largest correction of NTP.
const DRIFT_MAX: i64 = 1000;

impl Bounds {
    /// Bounds from one request: the server reported `time` at some moment between `sent` and `received`.
    fn measured(time: i64, sent: i64, received: i64) -> Self {
        Self { low: time - received, high: time - sent, at: received }
    }

    /// Combines two measurements. If they contradict each other, the server's clock was set and the later one applies.
    fn combined(self, later: Self) -> Self {
        let drift = (later.at - self.at).max(0) / 1_000_000 * DRIFT_MAX;
        let (low, high) = (later.low.max(self.low - drift), later.high.min(self.high + drift));
        if low <= high { Self { low, high, at: later.at } } else { later }
    }

    fn middle(self) -> i64 {
        self.low.midpoint(self.high)
    }
}

impl FarmClock {
    pub(crate) fn of_this_machine(denials: Denials) -> Self {
        let offset = AtomicI64::new(micros(SystemTime::now()) - boottime());
        Self(Arc::new(State {
            offset,
            bounds: Mutex::default(),
            denials,
            is_leader_denied: AtomicBool::new(false),
        }))
    }

    /// The current farm time.
    pub fn now(&self) -> Millis {
        millis(self.micros())
    }

    /// The current farm time, in microseconds since the Unix epoch.
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.micros()).unwrap_or_default()
    }

    /// The current farm time as a `SystemTime`.
    pub fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(self.now_us())
    }

    /// The farm time at the moment when this machine's clock showed `local`.
    pub fn of_local(&self, local: SystemTime) -> SystemTime {
        let now = SystemTime::now();
        match now.duration_since(local) {
            Ok(ago) => self.system_time() - ago,
            Err(ahead) => self.system_time() + ahead.duration(),
        }
    }

    /// A lower bound of the current farm time, whatever the measurement error; `None` before the first measurement.
    pub fn at_least(&self) -> Option<Millis> {
        let bounds = (*self.0.bounds.lock())?;
        Some(millis(boottime() + bounds.low))
    }

    /// How far this machine's clock is ahead of the farm's; `None` before the first measurement.
    pub fn skew(&self) -> Option<Skew> {
        (*self.0.bounds.lock())?;
        Some(Skew((micros(SystemTime::now()) - self.micros()) / 1000))
    }

    fn micros(&self) -> i64 {
        boottime() + self.0.offset.load(Ordering::Relaxed)
    }

    fn add_measurement(&self, later: Bounds) {
        let mut bounds = self.0.bounds.lock();
        let known = bounds.map_or(later, |known| known.combined(later));
        *bounds = Some(known);
        self.0.offset.store(known.middle(), Ordering::Relaxed);
    }
}

#[derive(Deserialize)]
struct UserInfo {
    server: ServerInfo,
}

#[derive(Deserialize)]
struct ServerInfo {
    time: String,
}

#[derive(Deserialize)]
struct StreamInfo {
    ts: String,
}

impl FarmClock {
    /// Measures the time of the leader of the lease stream, which also timestamps the leases; before that stream
    /// exists, the time of the server that this process is connected to.
    pub(crate) async fn measure(&self, client: &Client, patience: Duration) -> Result<(), BusError> {
        if !self.0.is_leader_denied.load(Ordering::Relaxed) {
            let leader = format!("$JS.API.STREAM.INFO.{}", stream::LEASES);
            let measured = self.measure_from(client, leader.clone(), patience, |info: &StreamInfo| &info.ts);
            match self.0.denials.unless_denied(&leader, measured).await {
                Some(Ok(())) => return Ok(()),
                Some(Err(_)) => {}
                None => self.0.is_leader_denied.store(true, Ordering::Relaxed),
            }
        }
        self.measure_server(client, patience).await
    }

    /// Measures the time of the server that this process is connected to, which needs no stream.
    pub(crate) async fn measure_server(&self, client: &Client, patience: Duration) -> Result<(), BusError> {
        let server = USER_INFO.to_owned();
        self.measure_from(client, server, patience, |info: &UserInfo| &info.server.time).await
    }

    async fn measure_from<T: DeserializeOwned>(
        &self,
        client: &Client,
        subject: String,
        patience: Duration,
        time: impl Fn(&T) -> &str,
    ) -> Result<(), BusError> {
        let what = || "reading the time of nats-server".to_owned();
        let sent = boottime();
        let answered = tokio::time::timeout(patience, client.request(subject, Bytes::new())).await;
        let received = boottime();
        let reply = answered.map_err(|_| BusError::Timeout { what: what() })?;
        let reply = reply.map_err(BusError::failed(what()))?;
        let answer: T = from_json(&reply.payload).map_err(BusError::failed(what()))?;
        let time = OffsetDateTime::parse(time(&answer), &Rfc3339).map_err(BusError::failed(what()))?;
        self.add_measurement(Bounds::measured(micros(time.into()), sent, received));
        Ok(())
    }

    /// Measures after every reconnection and at regular intervals, until the last copy of this clock is dropped.
    pub(crate) async fn remeasure(self, client: Client, mut reconnects: watch::Receiver<u64>) {
        reconnects.mark_unchanged();
        let clock = Arc::downgrade(&self.0);
        drop(self);
        loop {
            let is_reconnected = tokio::select! {
                () = tokio::time::sleep(MEASURE_INTERVAL) => false,
                changed = reconnects.changed() => if changed.is_err() { return } else { true },
            };
            let Some(state) = clock.upgrade() else { return };
            if is_reconnected {
                // By now the user may have the right.
                state.is_leader_denied.store(false, Ordering::Relaxed);
            }
            if let Err(error) = Self(state).measure(&client, MEASURE_TIMEOUT).await {
                debug!(%error, "cannot measure the time of nats-server, extrapolating it");
            }
        }
    }
}

fn millis(micros: i64) -> Millis {
    Millis(u64::try_from(micros / 1000).unwrap_or_default())
}

fn micros(at: SystemTime) -> i64 {
    let span = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Microseconds of `CLOCK_BOOTTIME`, which advances during suspend and cannot be set. Linux 2.6.39 or later.
fn boottime() -> i64 {
    let span = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).present("the time since boot");
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    #[test]
    fn each_measurement_narrows_what_is_known() {
        // The true offset is 7 s.
        let slow = Bounds::measured(10 * SECOND, 2 * SECOND, 5 * SECOND);
        assert_eq!((slow.low, slow.high), (5 * SECOND, 8 * SECOND));
        let quick = Bounds::measured(13 * SECOND, 6 * SECOND - 10, 6 * SECOND + 30);
        assert_eq!(slow.combined(quick).middle(), 7 * SECOND - 10);
        // A later slow measurement widens the bounds only by the possible drift.
        let later = Bounds::measured(20 * SECOND, 12 * SECOND, 14 * SECOND);
        let known = slow.combined(quick).combined(later);
        assert!((known.middle() - 7 * SECOND).abs() < 10_000 && known.high - known.low < 20_000, "{known:?}");
    }

    #[test]
    fn a_clock_that_was_set_is_followed() {
        let before = Bounds::measured(10 * SECOND, 3 * SECOND, 3 * SECOND + 10);
        let after = Bounds::measured(3600 * SECOND, 4 * SECOND, 4 * SECOND + 10);
        assert_eq!(before.combined(after), after);
        assert_eq!(after.combined(before), before);
    }

    #[test]
    fn local_times_are_put_where_they_belong() {
        let clock = FarmClock::of_this_machine(Denials::default());
        assert_eq!((clock.skew(), clock.at_least()), (None, None));
        let hour = 3600 * SECOND;
        let now = boottime();
        let behind = micros(SystemTime::now()) - hour;
        clock.add_measurement(Bounds::measured(behind, now, now));
        assert!((clock.skew().unwrap().0 - 3_600_000).abs() < 60_000, "{:?}", clock.skew());
        let local = SystemTime::now() - Duration::from_secs(5);
        let error = micros(clock.of_local(local)) - (micros(local) - hour);
        assert!(error.abs() < 60 * SECOND, "{error}");
        assert!(clock.at_least().unwrap() <= clock.now());
    }
}
