//! The projection of records of executions into the index of actions.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use bus::{ActionSubject, BusError, Start, Stored, stream};
use index::{
    Applied, Health, IndexError, RebuildToken,
    actions::{Change, Effects, Event},
};
use invariant::impossible;
use model::{ExecutionHead, ExecutionKey, ExecutorHeartbeat, ExecutorId, Sequence};
use projection::{Projection, Steps};
use service::{ServiceError, Step, crash_point, request_heartbeats};
use telemetry::metrics::{Counter, Label, count};
use tokio::sync::Notify;
use tracing::warn;

use crate::{
    Shared,
    floor::{self, Floor},
    heartbeat,
    records::{self, RecordContent},
    reserve::{self, NewlyWaiting},
};

/// How long executors may take after a rebuild to announce what they run, so that it is not started twice.
const HOLD: Duration = Duration::from_millis(500);

/// Keeps the index up to date until the service stops.
pub(crate) async fn run(shared: Shared) -> Result<(), ServiceError> {
    let context = shared.context.clone();
    projection::run(context, Executions { shared, floor: Floor::default() }).await
}

struct Executions {
    shared: Shared,
    floor: Floor,
}

impl Projection for Executions {
    const STREAM: &'static str = stream::ACTIONS;
    const SUBJECTS: &'static str = ActionSubject::ALL;
    const LOG: &'static str = "stream of executions";
    const INDEX: &'static str = "action index";
    const STEPS: Steps = Steps {
        read: Step::ActionEventsRead,
        applied: Step::ActionEventsApplied,
        rebuild_begun: Step::ActionRebuildBegun,
    };

    type Record = ReadRecord;
    type Effects = Effects;

    fn missing(&self) -> &Notify {
        &self.shared.wakes.rebuild
    }

    fn ready(&self) {
        self.shared.wakes.dispatch.notify_one();
    }

    async fn health(&self) -> Result<Option<Health>, IndexError> {
        self.shared.actions.health().await
    }

    fn read(&self, stored: &Stored) -> Result<ReadRecord, BusError> {
        let content = records::read(stored)?;
        let capacity = |pool: &_| self.shared.view.capacity(pool);
        let event = records::event(&content, stored, &self.shared.learned, capacity);
        Ok(ReadRecord { content, event })
    }

    async fn apply(
        &self,
        from: Sequence,
        to: Sequence,
        records: &[ReadRecord],
    ) -> Result<Applied<Effects>, IndexError> {
        self.shared.actions.apply(from, to, &events(records), self.shared.context.bus.now()).await
    }

    /// Notifies executors of newly waiting executions, and of executions that ended without them.
    async fn applied(&self, read: &[ReadRecord], effects: Effects) {
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

    async fn begin_rebuild(&self) -> Result<Option<RebuildToken>, IndexError> {
        self.shared.actions.begin_rebuild().await
    }

    async fn rebuild_start(&self) -> Start {
        floor::start(&self.shared.context.bus).await
    }

    async fn load(
        &self,
        token: &RebuildToken,
        records: &[ReadRecord],
    ) -> Result<Applied<Effects>, IndexError> {
        self.shared.actions.load(token, &events(records), self.shared.context.bus.now()).await
    }

    async fn finish_rebuild(&self, token: &RebuildToken, watermark: Sequence) -> Result<bool, IndexError> {
        let context = &self.shared.context;
        // The stream does not say what the live executors run.
        let awaited: Vec<ExecutorId> = match context.bus.leases().executors().await {
            Ok(live) => live.into_iter().map(|heartbeat| heartbeat.executor).collect(),
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot read the live executors");
                return Ok(false);
            }
        };
        let now = context.bus.now();
        let guard = now.after(self.shared.lease_ttl);
        self.shared.actions.finish_rebuild(token, watermark, &awaited, now.after(HOLD), guard).await
    }

    /// Asks executors what they run, and looks for lost ones.
    async fn rebuilt(&self) {
        request_heartbeats::<ExecutorHeartbeat>(&self.shared.context.bus).await;
        self.shared.wakes.sweep.notify_one();
    }
}

impl Executions {
    /// Learns from a finished execution.
    fn learn_from(&self, record: &ExecutionHead) {
        let (shared, keys) = (&self.shared, &record.execution.keys);
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
}

fn events(records: &[ReadRecord]) -> Vec<&Event> {
    records.iter().map(|record| &record.event).collect()
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
