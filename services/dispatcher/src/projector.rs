//! The projection: lifecycle events into the index, in order, each once; all of them when Redis forgot.

use std::time::Duration;

use bus::{EventSubject, Follower, Start, Stored, Subject, stream};
use bytes::Bytes;
use index::{Applied, Index, IndexEvent};
use model::{Sequence, WorkspaceKeys};
use service::{Context, ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, count};
use tracing::{error, info, warn};

use crate::{Wakes, brief, warm::Warm};

const BATCH: usize = 1000;
/// How long a Redis that forgot everything may go unnoticed while nothing happens.
const CHECK: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(100);

/// Keeps the index until the service stops.
pub(crate) async fn run(
    context: Context,
    index: Index,
    wakes: Wakes,
    warm: Warm,
) -> Result<(), ServiceError> {
    let follower =
        Follower::new(&context.bus, stream::EVENTS, EventSubject::LIFECYCLES, Start::After(Sequence(0)));
    let stop = context.stop.clone();
    let (watched, looked_at, woken) = (context.clone(), index.clone(), wakes.clone());
    let order = brief::order_of_queues(&context.settings);
    let mut projector = Projector { context, index, wakes, warm, follower, order };
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        () = watch_index(&watched, &looked_at, &woken) => Ok(()),
        () = projector.follow() => Ok(()),
    }
}

/// Notices what no event tells: a Redis that forgot everything while nothing happened, and an event stream that may be
/// another one since the connection came back.
async fn watch_index(context: &Context, index: &Index, wakes: &Wakes) {
    let mut reconnects = context.bus.reconnects();
    loop {
        tokio::select! {
            () = tokio::time::sleep(CHECK) => {
                if matches!(index.health().await, Ok(None)) {
                    wakes.rebuild.notify_one();
                }
            }
            () = reconnects.next() => wakes.rebuild.notify_one(),
        }
    }
}

struct Projector {
    context: Context,
    index: Index,
    wakes: Wakes,
    warm: Warm,
    follower: Follower,
    /// By what the queues are ordered.
    order: String,
}

impl Projector {
    async fn follow(&mut self) {
        self.adopt_order().await;
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
            crash_point(Step::EventsRead);
            let (events, left) = self.read(&batch);
            self.warm.follow(events.iter().zip(left.iter().map(Option::as_ref)));
            self.apply(from, &events).await;
        }
    }

    /// Rebuilds an index whose queues are in another order than the settings say by now: the places of what waits there and
    /// of what comes could not be compared. Only at the start, so that of two dispatchers with different settings the one
    /// that was started last has its way.
    async fn adopt_order(&mut self) {
        while let Ok(order) = self.index.order().await {
            if order.is_empty() || order == self.order {
                return;
            }
            info!(before = order, now = self.order, "the queues are put in another order");
            if self.rebuild().await {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Finds where to go on, rebuilding the index when there is none.
    async fn resume(&mut self) {
        loop {
            match (self.index.health().await, self.context.bus.stream_positions(stream::EVENTS).await) {
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
                    warn!(error = telemetry::error_chain(&error), "waiting for the event stream");
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn apply(&mut self, from: Sequence, events: &[IndexEvent]) {
        let to = self.follower.cursor();
        loop {
            match self.index.apply(from, to, events).await {
                Ok(Applied::Done) => {
                    count(Counter::IndexApplied, &[], events.len() as u64);
                    crash_point(Step::EventsApplied);
                    self.wakes.dispatch.notify_one();
                    return;
                }
                Ok(Applied::Gap(watermark)) => {
                    info!(%watermark, "the index is behind, reading again from there");
                    self.follower.seek(watermark);
                    return;
                }
                Ok(Applied::Empty | Applied::Lost) => return self.resume().await,
                Ok(Applied::Rebuilding) => {}
                Err(error) => warn!(error = telemetry::error_chain(&error), "events not applied yet"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Builds the index anew from the last lifecycle message of every build. False: try again.
    async fn rebuild(&mut self) -> bool {
        let token = match self.index.begin_rebuild().await {
            Ok(Some(token)) => token,
            Ok(None) => return false,
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot rebuild the index");
                return false;
            }
        };
        info!("rebuilding the index from the event stream");
        crash_point(Step::RebuildBegun);
        let begun = tokio::time::Instant::now();
        let bus = &self.context.bus;
        self.follower =
            Follower::new(bus, stream::EVENTS, EventSubject::LIFECYCLES, Start::LastOfEachSubject);
        self.follower.open().await;
        let mut builds = 0;
        while !self.follower.caught_up() {
            let batch = self.follower.next(BATCH).await;
            let (events, _) = self.read(&batch);
            builds += events.len();
            if self.index.load(&token, &events).await.ok() != Some(Applied::Done) {
                return false;
            }
        }
        let watermark = self.follower.cursor();
        if !matches!(self.index.finish_rebuild(&token, watermark, &self.order).await, Ok(true)) {
            return false;
        }
        count(Counter::IndexRebuilds, &[], 1);
        info!(builds, %watermark, seconds = begun.elapsed().as_secs_f64(), "index rebuilt");
        // The workspaces are not in the stream: their workers say at once what is free.
        let told = bus.client().publish(Subject::Announce.to_string(), Bytes::new()).await;
        if let Err(error) = told {
            warn!(%error, "workers were not asked to announce themselves; their next heartbeat does");
        }
        self.wakes.dispatch.notify_one();
        true
    }

    fn read(&self, batch: &[Stored]) -> (Vec<IndexEvent>, Vec<Option<WorkspaceKeys>>) {
        let read = |stored: &Stored| match brief::read(stored, &self.context.settings) {
            Ok(event) => Some(event),
            Err(error) => {
                // Only a record written by something else than Forebay; the others go on.
                error!(
                    error = telemetry::error_chain(&error),
                    "a lifecycle message is left out of the index"
                );
                None
            }
        };
        batch.iter().filter_map(read).unzip()
    }
}
