//! The projection: applies the records of executions to the index, in order and exactly once; rebuilds the index after
//! a loss of Redis data.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use bus::{ActionSubject, Follower, Start, Stored, stream};
use index::{
    IndexError, RebuildToken,
    actions::{Applied, Change, Effects, Event},
};
use invariant::impossible;
use model::{ExecutionKey, ExecutorId, Sequence};
use service::{ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tracing::{error, info, warn};

use crate::{
    Shared, ask,
    floor::{self, Floor},
    heartbeat,
    records::{self, FinishedRecord, RecordContent},
    reserve::{self, NewlyWaiting},
};

const BATCH: usize = 1000;
/// Interval of the check for a lost index, while no records come.
const CHECK: Duration = Duration::from_secs(2);
/// Interval at which the right to rebuild is renewed; well below its lifetime.
const KEEP: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(100);
/// How long executors may take after a rebuild to announce what they run, so that it is not started twice.
const HOLD: Duration = Duration::from_millis(500);

/// Keeps the index up to date until the service stops.
pub(crate) async fn run(shared: Shared) -> Result<(), ServiceError> {
    let follower =
        Follower::new(&shared.context.bus, stream::ACTIONS, ActionSubject::ALL, Start::After(Sequence(0)));
    let stop = shared.context.stop.clone();
    let mut projector = Projector { shared: shared.clone(), follower, floor: Floor::default() };
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        () = watch_index(&shared) => Ok(()),
        () = projector.follow() => Ok(()),
    }
}

/// Detects what no record reveals: a Redis that lost its data while no records came, and a stream that may have been
/// replaced while the connection was lost.
async fn watch_index(shared: &Shared) {
    let mut reconnects = shared.context.bus.reconnects();
    loop {
        tokio::select! {
            () = tokio::time::sleep(CHECK) => {
                if matches!(shared.actions.health().await, Ok(None)) {
                    shared.wakes.rebuild.notify_one();
                }
            }
            () = reconnects.next() => shared.wakes.rebuild.notify_one(),
        }
    }
}

struct Projector {
    shared: Shared,
    follower: Follower,
    floor: Floor,
}

impl Projector {
    async fn follow(&mut self) {
        self.resume().await;
        loop {
            // Not inside the select: cancelling it would leave a half-created consumer behind.
            self.follower.open().await;
            let from = self.follower.cursor();
            let batch = tokio::select! {
                batch = self.follower.next(BATCH) => batch,
                () = self.shared.wakes.rebuild.notified() => {
                    self.resume().await;
                    continue;
                }
            };
            crash_point(Step::ActionEventsRead);
            let read = self.read(&batch);
            self.apply(from, &read).await;
        }
    }

    /// Determines the position to continue from; rebuilds the index if there is none.
    async fn resume(&mut self) {
        loop {
            let positions = self.shared.context.bus.stream_positions(stream::ACTIONS).await;
            match (self.shared.actions.health().await, positions) {
                (Ok(Some(health)), Ok((_, last))) if health.ready && health.watermark <= last => {
                    self.follower.seek(health.watermark);
                    self.shared.wakes.dispatch.notify_one();
                    return;
                }
                (Ok(_), Ok(_)) => {
                    if self.rebuild().await {
                        return;
                    }
                }
                (Err(error), _) => warn!(error = telemetry::error_chain(&error), "waiting for redis"),
                (_, Err(error)) => {
                    warn!(error = telemetry::error_chain(&error), "waiting for the stream of executions");
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn apply(&mut self, from: Sequence, read: &[ReadRecord]) {
        let to = self.follower.cursor();
        let events: Vec<&Event> = read.iter().map(|read| &read.event).collect();
        loop {
            match self.shared.actions.apply(from, to, &events, self.shared.context.bus.now()).await {
                Ok(Applied::Done(effects)) => {
                    count(Counter::IndexApplied, &[], events.len() as u64);
                    crash_point(Step::ActionEventsApplied);
                    return self.applied(read, effects).await;
                }
                Ok(Applied::Gap(watermark)) => {
                    info!(%watermark, "the action index is behind; reading again from its watermark");
                    self.follower.seek(watermark);
                    return;
                }
                Ok(Applied::Empty | Applied::Lost) => return self.resume().await,
                Ok(Applied::Rebuilding) => {}
                Err(error) => warn!(error = telemetry::error_chain(&error), "cannot apply records; retrying"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Notifies executors of newly waiting executions, and of executions that ended without them.
    async fn applied(&mut self, read: &[ReadRecord], effects: Effects) {
        self.floor.note(&self.shared.context, &self.shared.actions);
        for it in read {
            match (&it.content, &it.event.change) {
                (RecordContent::Finished(finished), _) => self.learn_from(finished),
                (RecordContent::Open(record), Change::Open(_, open)) => {
                    self.shared.news(&open.pool);
                    if let Some(grown) = record.so_far.memory_bytes
                        && matches!(record.phase, model::ExecutionPhase::Requeued { .. })
                    {
                        self.shared.learned.learn_out_of_memory(&record.execution.keys, grown / 2);
                    }
                }
                (RecordContent::Open(_), Change::Finished { .. }) => {
                    impossible!("the record of unfinished execution {} finishes it", it.event.key);
                }
            }
        }
        reserve::trim(&self.shared, self.notified_of_finished(read)).await;
        let new: HashSet<ExecutionKey> = effects.fresh.into_iter().collect();
        let fresh: Vec<NewlyWaiting<'_>> = read.iter().filter_map(|it| it.fresh(&new)).collect();
        for execution in &fresh {
            self.shared.view.waits_again(execution.key);
        }
        reserve::reserve(&self.shared, &fresh).await;
        crash_point(Step::ActionReserved);
        if read.iter().any(|it| matches!(it.content, RecordContent::Open(_))) {
            self.shared.wakes.dispatch.notify_one();
        }
        for it in effects.astray {
            heartbeat::cancel(&self.shared.context, &it.executor, it.key).await;
        }
    }

    /// Learns from a finished execution.
    fn learn_from(&self, record: &FinishedRecord) {
        let (shared, keys) = (&self.shared, record.keys());
        if let Some(home) = &record.home {
            let homes = shared.learned.homes(keys);
            if !homes.is_empty() {
                let verdict = if homes.contains(home) { "hit" } else { "miss" };
                count(Counter::AffinityLookups, &[(Label::Verdict, verdict)], 1);
            }
        }
        shared.learned.learn(keys, record.measured.as_ref(), record.home.as_ref(), record.is_success());
    }

    /// The executors that were notified of executions which ended before they were claimed.
    fn notified_of_finished(&self, read: &[ReadRecord]) -> HashMap<ExecutorId, Vec<ExecutionKey>> {
        let mut trim: HashMap<ExecutorId, Vec<ExecutionKey>> = HashMap::new();
        for it in read.iter().filter(|it| matches!(it.content, RecordContent::Finished(_))) {
            for executor in self.shared.view.forget_finished(&it.event.key) {
                trim.entry(executor).or_default().push(it.event.key.clone());
            }
        }
        trim
    }

    fn read(&self, batch: &[Stored]) -> Vec<ReadRecord> {
        let read = |stored: &Stored| match records::read(stored) {
            Ok(content) => {
                let capacity = |pool: &_| self.shared.view.capacity(pool);
                let event = records::event(&content, stored, &self.shared.learned, capacity);
                Some(ReadRecord { content, event })
            }
            Err(error) => {
                // Only a record that another program wrote can be unreadable; it is skipped.
                error!(error = telemetry::error_chain(&error), "skipping a record that cannot be read");
                None
            }
        };
        batch.iter().filter_map(read).collect()
    }

    /// Rebuilds the index from all records that may be unfinished. Returns false if it must be tried again.
    async fn rebuild(&mut self) -> bool {
        let token = match self.shared.actions.begin_rebuild().await {
            Ok(Some(token)) => token,
            Ok(None) => return false,
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot begin to rebuild the action index");
                return false;
            }
        };
        info!("rebuilding the action index from the stream");
        crash_point(Step::ActionRebuildBegun);
        let begun = tokio::time::Instant::now();
        let bus = self.shared.context.bus.clone();
        let start = floor::start(&bus).await;
        self.follower = Follower::new(&bus, stream::ACTIONS, ActionSubject::ALL, start);
        self.open_under(&token).await;
        let mut executions = 0;
        while !self.follower.caught_up() {
            let batch = self.follower.next(BATCH).await;
            let read = self.read(&batch);
            executions += read.len();
            let events: Vec<&Event> = read.iter().map(|read| &read.event).collect();
            let loaded = self.shared.actions.load(&token, &events, self.shared.context.bus.now());
            let loaded = loaded.await.inspect_err(log_failed_rebuild);
            if !matches!(loaded, Ok(Applied::Done(_))) {
                return false;
            }
        }
        let watermark = self.follower.cursor();
        // The stream does not say what the live executors run.
        let awaited: Vec<ExecutorId> = match bus.executors().await {
            Ok(live) => live.into_iter().map(|heartbeat| heartbeat.executor).collect(),
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot read the live executors");
                return false;
            }
        };
        let now = self.shared.context.bus.now();
        let guard = now.after(Duration::from_secs(self.shared.context.settings.lease_ttl_seconds));
        let finished =
            self.shared.actions.finish_rebuild(&token, watermark, &awaited, now.after(HOLD), guard);
        let finished = finished.await.inspect_err(log_failed_rebuild);
        if !matches!(finished, Ok(true)) {
            return false;
        }
        ask::ask_all(&self.shared.context).await;
        count(Counter::IndexRebuilds, &[], 1);
        info!(executions, %watermark, seconds = begun.elapsed().as_secs_f64(), "action index rebuilt");
        self.shared.wakes.dispatch.notify_one();
        self.shared.wakes.sweep.notify_one();
        true
    }

    /// Opens the follower, which takes the server a while with many executions, and renews the right to
    /// rebuild during that time.
    async fn open_under(&mut self, token: &RebuildToken) {
        let mut open = std::pin::pin!(self.follower.open());
        loop {
            tokio::select! {
                () = &mut open => return,
                () = tokio::time::sleep(KEEP) => {
                    // If the right is lost, the first load of records reports it.
                    let _ = self.shared.actions.load(token, &[], self.shared.context.bus.now()).await;
                }
            }
        }
    }
}

fn log_failed_rebuild(error: &IndexError) {
    warn!(error = telemetry::error_chain(error), "cannot rebuild the action index; retrying");
}

/// A record after it was read.
struct ReadRecord {
    content: RecordContent,
    event: Event,
}

impl ReadRecord {
    /// The execution as a candidate for reservations, if it started to wait with this record.
    fn fresh<'a>(&'a self, fresh: &HashSet<ExecutionKey>) -> Option<NewlyWaiting<'a>> {
        let (RecordContent::Open(record), Change::Open(_, open)) = (&self.content, &self.event.change) else {
            return None;
        };
        let place = record.place_at(self.event.sequence);
        let (key, sequence) = (&self.event.key, self.event.sequence);
        fresh.contains(key).then_some(NewlyWaiting {
            key,
            place,
            sequence,
            keys: &record.execution.keys,
            open,
        })
    }
}
