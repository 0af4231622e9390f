//! The projection: records of executions into the index, in order, each once; all of them when Redis forgot.

use std::time::Duration;

use bus::{ActionSubject, Follower, Start, Stored, stream};
use index::{
    RebuildToken,
    actions::{Actions, Applied, Event},
};
use model::{ExecutorId, Millis, Sequence};
use service::{Context, ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, count};
use tracing::{error, info, warn};

use crate::{
    Wakes, ask, brief,
    floor::{self, Floor},
    heartbeat,
};

const BATCH: usize = 1000;
/// How long a Redis that forgot everything may go unnoticed while nothing happens.
const CHECK: Duration = Duration::from_secs(2);
/// Well below the life of the right to rebuild.
const KEEP: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(100);
/// How long executors may take after a rebuild to say what they run, so that it is not started twice.
const HOLD: Duration = Duration::from_millis(500);

/// Keeps the index until the service stops.
pub(crate) async fn run(context: Context, actions: Actions, wakes: Wakes) -> Result<(), ServiceError> {
    let follower =
        Follower::new(&context.bus, stream::ACTIONS, ActionSubject::ALL, Start::After(Sequence(0)));
    let stop = context.stop.clone();
    let (watched, looked_at, woken) = (context.clone(), actions.clone(), wakes.clone());
    let floor = Floor::default();
    let mut projector = Projector { context, actions, wakes, follower, floor };
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        () = watch_index(&watched, &looked_at, &woken) => Ok(()),
        () = projector.follow() => Ok(()),
    }
}

/// Notices what no record tells: a Redis that forgot everything while nothing happened, and a stream that may be another
/// one since the connection came back.
async fn watch_index(context: &Context, actions: &Actions, wakes: &Wakes) {
    let mut reconnects = context.bus.reconnects();
    loop {
        tokio::select! {
            () = tokio::time::sleep(CHECK) => {
                if matches!(actions.health().await, Ok(None)) {
                    wakes.rebuild.notify_one();
                }
            }
            () = reconnects.next() => wakes.rebuild.notify_one(),
        }
    }
}

struct Projector {
    context: Context,
    actions: Actions,
    wakes: Wakes,
    follower: Follower,
    floor: Floor,
}

impl Projector {
    async fn follow(&mut self) {
        self.resume().await;
        loop {
            // Not inside the select: a consumer half made would be left behind.
            self.follower.open().await;
            let from = self.follower.cursor();
            let batch = tokio::select! {
                batch = self.follower.next(BATCH) => batch,
                () = self.wakes.rebuild.notified() => {
                    self.resume().await;
                    continue;
                }
            };
            crash_point(Step::ActionEventsRead);
            self.apply(from, &read(&batch)).await;
        }
    }

    /// Finds where to go on, rebuilding the index when there is none.
    async fn resume(&mut self) {
        loop {
            let positions = self.context.bus.stream_positions(stream::ACTIONS).await;
            match (self.actions.health().await, positions) {
                (Ok(Some(health)), Ok((_, last))) if health.ready && health.watermark <= last => {
                    self.follower.seek(health.watermark);
                    self.wakes.dispatch.notify_one();
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

    async fn apply(&mut self, from: Sequence, events: &[Event]) {
        let to = self.follower.cursor();
        loop {
            match self.actions.apply(from, to, events).await {
                Ok(Applied::Done(astray)) => {
                    count(Counter::IndexApplied, &[], events.len() as u64);
                    crash_point(Step::ActionEventsApplied);
                    self.wakes.dispatch.notify_one();
                    self.floor.note(&self.context, &self.actions);
                    for it in astray {
                        heartbeat::cancel(&self.context, &it.executor, it.key).await;
                    }
                    return;
                }
                Ok(Applied::Gap(watermark)) => {
                    info!(%watermark, "the action index is behind, reading again from there");
                    self.follower.seek(watermark);
                    return;
                }
                Ok(Applied::Empty | Applied::Lost) => return self.resume().await,
                Ok(Applied::Rebuilding) => {}
                Err(error) => warn!(error = telemetry::error_chain(&error), "records not applied yet"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Builds the index anew from all that may be unfinished. False: try again.
    async fn rebuild(&mut self) -> bool {
        let token = match self.actions.begin_rebuild().await {
            Ok(Some(token)) => token,
            Ok(None) => return false,
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot rebuild the action index");
                return false;
            }
        };
        info!("rebuilding the action index from the stream");
        crash_point(Step::ActionRebuildBegun);
        let begun = tokio::time::Instant::now();
        let bus = self.context.bus.clone();
        let start = floor::start(&bus).await;
        self.follower = Follower::new(&bus, stream::ACTIONS, ActionSubject::ALL, start);
        self.open_under(&token).await;
        let mut executions = 0;
        while !self.follower.caught_up() {
            let events = read(&self.follower.next(BATCH).await);
            executions += events.len();
            if !matches!(self.actions.load(&token, &events).await, Ok(Applied::Done(_))) {
                return false;
            }
        }
        let watermark = self.follower.cursor();
        // What they run is not in the stream.
        let awaited: Vec<ExecutorId> = match bus.executors().await {
            Ok(live) => live.into_iter().map(|heartbeat| heartbeat.executor).collect(),
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "who runs something is not known");
                return false;
            }
        };
        let now = Millis::now();
        let guard = now.after(Duration::from_secs(self.context.settings.lease_ttl_seconds));
        let finished = self.actions.finish_rebuild(&token, watermark, &awaited, now.after(HOLD), guard);
        if !matches!(finished.await, Ok(true)) {
            return false;
        }
        ask::now(&self.context).await;
        count(Counter::IndexRebuilds, &[], 1);
        info!(executions, %watermark, seconds = begun.elapsed().as_secs_f64(), "action index rebuilt");
        self.wakes.dispatch.notify_one();
        self.wakes.sweep.notify_one();
        true
    }

    /// Opens the follower, which takes the server a while with many executions, and keeps the right meanwhile.
    async fn open_under(&mut self, token: &RebuildToken) {
        let mut open = std::pin::pin!(self.follower.open());
        loop {
            tokio::select! {
                () = &mut open => return,
                // Should it be lost, the first load says so.
                () = tokio::time::sleep(KEEP) => drop(self.actions.load(token, &[]).await),
            }
        }
    }
}

fn read(batch: &[Stored]) -> Vec<Event> {
    let read = |stored: &Stored| match brief::read(stored) {
        Ok(event) => Some(event),
        Err(error) => {
            // Only a record written by something else than Forebay; the others go on.
            error!(error = telemetry::error_chain(&error), "a record is left out of the action index");
            None
        }
    };
    batch.iter().filter_map(read).collect()
}
