//! Messages between the processes on one folder: how much each wrote, and whether the store or a zone is full.
//!
//! Writers report their writes, a moment after a write and never otherwise. The evicting process reports when the
//! store becomes full and when it no longer is, and answers processes that ask.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bus::{Bus, BusError, Listener, Plain, Subject};
use cas::{Cas, CasRoom, Evictor, Refusal, UsageSink, ZoneRoom};
use model::{StoreId, Zone, ZoneLimit, ZoneUse};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use service::{ServiceError, StartError, host_name};
use tokio::{sync::Notify, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

/// Writes within this time are reported together.
const TOGETHER: Duration = Duration::from_millis(100);
/// Minimum time between two reports of writes that failed for want of space.
const FAILED_AGAIN: Duration = Duration::from_secs(1);
/// Minimum time between two reports of an unchanged state, except to processes that ask.
const STATE_AGAIN: Duration = Duration::from_secs(1);

bus::message!(Usage, State);

/// Bytes that a process wrote.
#[derive(Debug, Serialize, Deserialize)]
struct Usage {
    store: String,
    bytes: u64,
    /// Whether the process requests the state.
    asks: bool,
    /// Whether a write failed for want of space, or was refused.
    #[serde(default)]
    lacks_space: bool,
    /// What zones have that they did not have before.
    #[serde(default)]
    zones: BTreeMap<Zone, ZoneUse>,
}

/// Processes with a store to the process that evicts from it.
impl Plain for Usage {
    const NAME: &'static str = "a report of bytes written to a store";
    type To = ();
    type Answer = ();

    fn subject((): &()) -> Subject {
        Subject::CasUsage
    }
}

/// Whether a store is full.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    store: String,
    /// Host and folder of the store; empty from an earlier version.
    #[serde(default)]
    place: String,
    /// Whether writes are refused.
    full: bool,
    /// Whether small blobs are still accepted.
    #[serde(default)]
    takes_small: bool,
    #[serde(default)]
    used: u64,
    #[serde(default)]
    max: u64,
    #[serde(default)]
    zones: Vec<ZoneState>,
}

/// What a zone has in a store.
#[derive(Debug, Serialize, Deserialize)]
struct ZoneState {
    zone: Zone,
    used: ZoneUse,
    limit: ZoneLimit,
    /// Whether its writes are refused.
    full: bool,
}

impl From<ZoneRoom> for ZoneState {
    fn from(room: ZoneRoom) -> Self {
        Self { zone: room.zone, used: room.used, limit: room.limit, full: room.is_refused }
    }
}

impl From<ZoneState> for ZoneRoom {
    fn from(state: ZoneState) -> Self {
        Self { zone: state.zone, used: state.used, limit: state.limit, is_refused: state.full }
    }
}

/// The process that evicts from a store to all with a store.
impl Plain for State {
    const NAME: &'static str = "the state of a store";
    type To = ();
    type Answer = ();

    fn subject((): &()) -> Subject {
        Subject::CasState
    }
}

impl State {
    fn refusal(&self) -> Refusal {
        match (self.full, self.takes_small) {
            (false, _) => Refusal::Nothing,
            (true, true) => Refusal::Large,
            (true, false) => Refusal::All,
        }
    }

    fn refused_zones(&self) -> BTreeSet<Zone> {
        self.zones.iter().filter(|state| state.full).map(|state| state.zone.clone()).collect()
    }
}

/// Usage of one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreRoom {
    /// Name of the store.
    pub store: String,
    /// Host and folder of the store, `HOST:PATH`; empty if they are not known.
    pub place: String,
    pub room: CasRoom,
    /// What each zone has.
    pub zones: Vec<ZoneRoom>,
}

/// Returns the usage of the farm's stores, of those that answer within `wait`.
pub async fn store_rooms(bus: &Bus, wait: Duration) -> Result<Vec<StoreRoom>, ServiceError> {
    let mut states = bus.listen::<State>(&()).await?;
    let question =
        Usage { store: String::new(), bytes: 0, asks: true, lacks_space: false, zones: BTreeMap::new() };
    let failed = |error: BusError| ServiceError::failed("asking how full the stores are", error);
    bus.send(&(), &question).await.map_err(failed)?;
    let mut found = BTreeMap::new();
    let hear = async {
        while let Some(message) = states.next().await {
            let state = message.content;
            let room = CasRoom { used: state.used, max: state.max, refusal: state.refusal() };
            let zones = state.zones.into_iter().map(ZoneRoom::from).collect();
            let store = state.store;
            found.insert(store.clone(), StoreRoom { store, place: state.place, room, zones });
        }
    };
    // The time limit is the normal end: the number of stores is not known.
    let _ = tokio::time::timeout(wait, hear).await;
    Ok(found.into_values().collect())
}

/// Why a process reports to the one that evicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// It requests the state.
    Question,
    /// It wrote to the store.
    Write,
    /// A write failed for want of space, or was refused.
    Failure,
}

/// Reports over the bus what this process writes to its store, and learns whether the store is full.
#[derive(Debug, Default)]
pub struct StoreUsage {
    bytes: AtomicU64,
    zones: Mutex<BTreeMap<Zone, ZoneUse>>,
    wake: Notify,
    /// Whether a write failed that is not reported yet.
    lacks_space: AtomicBool,
    failed: Notify,
}

impl UsageSink for StoreUsage {
    fn used(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.wake.notify_one();
    }

    fn possessed(&self, zone: &Zone, more: ZoneUse) {
        self.add(zone, more);
        self.wake.notify_one();
    }

    fn lacks_space(&self) {
        self.lacks_space.store(true, Ordering::Release);
        self.failed.notify_one();
    }
}

impl StoreUsage {
    fn add(&self, zone: &Zone, more: ZoneUse) {
        let mut zones = self.zones.lock();
        let known = zones.entry(zone.clone()).or_default();
        *known = known.plus(more);
    }

    /// For every process that opens a store and does not evict from it. The task ends with `stop`.
    pub async fn join(cas: &Cas, bus: &Bus, stop: CancellationToken) -> Result<JoinHandle<()>, ServiceError> {
        let store = store_id(&cas.config().root)?;
        let states = bus.listen::<State>(&()).await?;
        let usage = Arc::new(Self::default());
        cas.set_usage_sink(Arc::clone(&usage) as Arc<dyn UsageSink>);
        Ok(tokio::spawn(usage.serve(cas.clone(), bus.clone(), store, states, stop)))
    }

    async fn serve(
        self: Arc<Self>,
        cas: Cas,
        bus: Bus,
        store: String,
        mut states: Listener<State>,
        stop: CancellationToken,
    ) {
        let mut reconnects = bus.reconnects();
        self.report(&bus, &store, Cause::Question).await;
        let mut reported = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.failure(reported + FAILED_AGAIN) => {
                    self.report(&bus, &store, Cause::Failure).await;
                    reported = Instant::now();
                }
                () = self.wake.notified() => {
                    tokio::time::sleep(TOGETHER).await;
                    self.report(&bus, &store, Cause::Write).await;
                }
                message = states.next() => match message.map(|message| message.content) {
                    Some(state) if state.store == store => {
                        cas.set_refusal(state.refusal());
                        cas.set_refused_zones(state.refused_zones());
                    }
                    Some(_) => {}
                    None => break,
                },
                // A change may have been published while the connection was lost.
                () = reconnects.next() => self.report(&bus, &store, Cause::Question).await,
            }
        }
        // The last report contains a failure that was not reported yet.
        self.report(&bus, &store, Cause::Failure).await;
    }

    /// Waits for a failed write that is not reported yet, and at least until `earliest`. May be dropped and repeated
    /// without losing a failure.
    async fn failure(&self, earliest: Instant) {
        while !self.lacks_space.load(Ordering::Acquire) {
            self.failed.notified().await;
        }
        tokio::time::sleep_until(earliest).await;
    }

    async fn report(&self, bus: &Bus, store: &str, cause: Cause) {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        let zones = std::mem::take(&mut *self.zones.lock());
        let (asks, lacks_space) = match cause {
            Cause::Question => (true, false),
            Cause::Write => (false, false),
            Cause::Failure => (false, self.lacks_space.swap(false, Ordering::AcqRel)),
        };
        if bytes == 0 && zones.is_empty() && !asks && !lacks_space {
            return;
        }
        let usage = Usage { store: store.into(), bytes, asks, lacks_space, zones };
        if let Err(error) = bus.send(&(), &usage).await {
            let error = telemetry::error_chain(&error);
            tracing::warn!(error, "cannot report the bytes written; they will be added to the next report");
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            for (zone, more) in &usage.zones {
                self.add(zone, *more);
            }
            if lacks_space {
                self.lacks_space();
            }
        }
    }
}

/// Counts the reported writes of a store, and reports when it is full. Returns with `stop`.
pub(crate) async fn govern(
    evictor: &Evictor,
    root: &Path,
    bus: &Bus,
    stop: &CancellationToken,
) -> Result<(), ServiceError> {
    let store = store_id(root)?;
    let place = format!("{}:{}", host_name(), root.display());
    let mut usages = bus.listen::<Usage>(&()).await?;
    let (mut state, mut refused_zones, zones) = (evictor.room(), evictor.refused_zones(), evictor.zones());
    let mut reconnects = bus.reconnects();
    let mut said = None;
    let mut said_at = Instant::now();
    // Whether the state is reported again although it did not change.
    let mut repeats = false;
    loop {
        let found = *state.borrow_and_update();
        if refused_zones.has_changed().unwrap_or(false) {
            refused_zones.mark_unchanged();
            said = None;
        }
        if said != Some(found.refusal) {
            let is_said = announce(bus, (store.as_str(), place.as_str()), found, zones()).await;
            said = is_said.then_some(found.refusal);
            said_at = Instant::now();
            repeats = said.is_none();
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = state.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
            }
            changed = refused_zones.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                said = None;
            }
            message = usages.next() => match message.map(|message| message.content) {
                Some(usage) if usage.store == store || usage.store.is_empty() => {
                    if usage.bytes > 0 {
                        evictor.used(usage.bytes);
                    }
                    for (zone, more) in &usage.zones {
                        evictor.possessed(zone, *more);
                    }
                    if usage.lacks_space {
                        evictor.lacks_space();
                        // The process may have missed the last change.
                        repeats = true;
                    }
                    if usage.asks {
                        said = None;
                    }
                }
                Some(_) => {}
                None => return Ok(()),
            },
            () = reconnects.next() => said = None,
            () = tokio::time::sleep_until(said_at + STATE_AGAIN), if repeats => said = None,
        }
    }
}

/// Publishes the state. Returns whether that succeeded.
async fn announce(bus: &Bus, (store, place): (&str, &str), room: CasRoom, zones: Vec<ZoneRoom>) -> bool {
    let state = State {
        store: store.into(),
        place: place.into(),
        full: room.refusal != Refusal::Nothing,
        takes_small: room.refusal != Refusal::All,
        used: room.used,
        max: room.max,
        zones: zones.into_iter().map(ZoneState::from).collect(),
    };
    match bus.send(&(), &state).await {
        Ok(()) => true,
        Err(error) => {
            let error = telemetry::error_chain(&error);
            tracing::warn!(error, "cannot report the state of the store; will retry");
            false
        }
    }
}

/// Returns the name of the folder `root`, which all processes on it share.
fn store_id(root: &Path) -> Result<String, StartError> {
    let failed = |source| StartError::Write { path: root.display().to_string(), source };
    cas::folder_id(root, StoreId::generate()).map(|id| id.to_string()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use bus::FromJson as _;

    use super::Usage;

    #[test]
    fn a_report_of_an_earlier_version_is_read() {
        let usage = Usage::from_json(br#"{"store":"s","bytes":1,"asks":false}"#).unwrap();
        assert!(usage.bytes == 1 && !usage.lacks_space && usage.zones.is_empty());
    }
}
