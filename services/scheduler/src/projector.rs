//! The projection of records of executions into the index of actions.

use std::{collections::HashSet, time::Duration};

use bus::{ActionSubject, BusError, Start, Stored, stream};
use index::{
    Applied, Health, IndexError, RebuildToken,
    actions::{Effects, Event},
};
use model::{
    ActionKeys, ExecutionHead, ExecutionKey, ExecutionRecord, ExecutorHeartbeat, ExecutorId, Requirements,
    Sequence,
};
use projection::{Projection, Steps};
use service::{ServiceError, Step, crash_point, request_heartbeats};
use telemetry::metrics::{Counter, Label, count};
use tokio::sync::Notify;
use tracing::warn;

use crate::{
    Shared, early,
    floor::{self, Floor},
    grants, heartbeat,
    records::{ReadRecord, RecordContent},
};

/// How long executors may take after a rebuild to announce what they run, so that it is not started twice.
const HOLD: Duration = Duration::from_millis(500);

/// Keeps the index up to date until the service stops.
pub(crate) async fn run(shared: Shared) -> Result<(), ServiceError> {
    let context = shared.context.clone();
    projection::run(context, Executions { shared, floor: Floor::default() }).await
}

/// Time for which a scheduler that follows waits before it looks whether records were applied, and for progress of the
/// one that applies them. After it, this scheduler applies them itself.
const FOLLOW: Duration = Duration::from_millis(20);

/// Effects of records on the index, and the executions that were granted with them.
#[derive(Default)]
struct AppliedHere {
    index: Effects,
    granted: HashSet<ExecutionKey>,
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
    type Effects = AppliedHere;

    fn missing(&self) -> &Notify {
        &self.shared.wakes.rebuild
    }

    fn ready(&self) {
        // Records that arrived until now were not reported as news.
        self.shared.queues.news_everywhere();
        self.shared.wakes.dispatch.notify_one();
    }

    async fn health(&self) -> Result<Option<Health>, IndexError> {
        self.shared.actions.health().await
    }

    async fn read(&self, stored: &Stored) -> Result<ReadRecord, BusError> {
        let read = ReadRecord::of(stored)?;
        if !matches!(read.content, RecordContent::Finished(_)) {
            self.shared.context.bus.check_accepted::<ExecutionRecord>(stored).await?;
        }
        Ok(read)
    }

    /// Learns before the records are applied, so that early grants follow the results that were read with them.
    fn note(&self, read: &[ReadRecord]) {
        for it in read {
            if let Some(room) = &it.room {
                self.shared.view.report(room);
            }
            if let RecordContent::Finished(finished) = &it.content {
                self.learn_from(finished);
            }
        }
    }

    async fn apply(
        &self,
        from: Sequence,
        to: Sequence,
        records: &[ReadRecord],
    ) -> Result<Applied<AppliedHere>, IndexError> {
        let shared = &self.shared;
        if shared.follows() && self.are_applied(to).await? {
            shared.note_peers();
            return Ok(Applied::Done(AppliedHere::default()));
        }
        let early = early::decide(shared, records);
        if early.is_some() {
            crash_point(Step::ActionPicked);
        }
        let commits = early.as_ref().map(|early| early.commits.as_slice()).unwrap_or_default();
        let now = shared.context.bus.now();
        let mut applied = shared.actions.apply(from, to, &self.events(records), commits, now).await?;
        if let Applied::Done(effects) = &applied {
            shared.set_follows(!effects.was_first);
            if effects.is_followed || !effects.was_first {
                shared.note_peers();
            }
        }
        let mut granted = HashSet::new();
        if let (Applied::Done(effects), Some(early)) = (&mut applied, early)
            && effects.applied_here
        {
            crash_point(Step::ActionCommitted);
            let committed = std::mem::take(&mut effects.granted);
            granted = grants::granted_keys(&early.granted, &committed);
            grants::send(shared, &early.granted, committed).await;
        }
        Ok(applied.map(|index| AppliedHere { index, granted }))
    }

    /// Wakes the dispatcher if something waits or an executor has room, and cancels what ended elsewhere.
    async fn applied(&self, read: &[ReadRecord], AppliedHere { index: effects, granted }: AppliedHere) {
        let shared = &self.shared;
        self.floor.note(&shared.context, &shared.actions);
        let mut wakes = read.iter().any(|it| it.room.is_some());
        for it in read {
            match &it.content {
                RecordContent::Finished(_) => shared.view.forget_warm(&it.key),
                RecordContent::Accepted(_) if granted.contains(&it.key) => {}
                RecordContent::Accepted(head) => {
                    wakes = true;
                    self.note_waiting(&it.key, &head.execution.requirements, &head.execution.keys);
                }
                RecordContent::Open(record) => {
                    wakes = true;
                    let execution = &record.execution;
                    self.note_waiting(&it.key, &execution.requirements, &execution.keys);
                    if let Some(grown) = record.so_far.memory_bytes
                        && matches!(record.phase, model::ExecutionPhase::Requeued { .. })
                    {
                        shared.learned.learn_out_of_memory(&execution.keys, grown / 2);
                    }
                }
            }
        }
        if wakes {
            let wake = if effects.applied_here { &shared.wakes.dispatch } else { &shared.wakes.check };
            wake.notify_one();
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
    ) -> Result<Applied<AppliedHere>, IndexError> {
        let loaded =
            self.shared.actions.load(token, &self.events(records), self.shared.context.bus.now()).await?;
        Ok(loaded.map(|index| AppliedHere { index, granted: HashSet::new() }))
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
    /// Waits while another scheduler applies records; returns whether it has applied those up to position `to`.
    async fn are_applied(&self, to: Sequence) -> Result<bool, IndexError> {
        let mut last = None;
        loop {
            tokio::time::sleep(FOLLOW).await;
            match self.shared.actions.follow().await? {
                Some(watermark) if watermark >= to => return Ok(true),
                Some(watermark) if last.is_none_or(|last| watermark > last) => last = Some(watermark),
                Some(_) | None => return Ok(false),
            }
        }
    }

    fn events<'r>(&self, records: &'r [ReadRecord]) -> Vec<&'r Event> {
        records.iter().filter_map(|record| record.event(&self.shared)).collect()
    }

    /// Notes that an execution with these requirements waits.
    fn note_waiting(&self, key: &ExecutionKey, requirements: &Requirements, keys: &ActionKeys) {
        let shared = &self.shared;
        shared.queues.news(requirements);
        if shared.affinity {
            shared.view.note_warm(key, shared.learned.homes(keys));
        }
    }

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
}
