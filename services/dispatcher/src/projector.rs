//! The projection: applies lifecycle events to the index, in order, each once; all of them after Redis
//! has lost the index.

use std::time::Duration;

use bus::{EventSubject, Follower, Start, Stored, Subject, stream};
use index::{Applied, Index, IndexError, IndexEvent};
use model::{Sequence, WorkspaceKeys};
use service::{Context, ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, count};
use tracing::{error, info, warn};

use crate::{Wakes, records, warm::Warm};

const BATCH: usize = 1000;
/// Maximum time for which a Redis that lost the index goes unnoticed while no events arrive.
const CHECK: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(100);

/// Maintains the index until the service stops.
pub(crate) async fn run(
    context: Context,
    index: Index,
    wakes: Wakes,
    warm: Warm,
) -> Result<(), ServiceError> {
    let follower =
        Follower::new(&context.bus, stream::EVENTS, EventSubject::LIFECYCLES, Start::After(Sequence(0)));
    let stop = context.stop.clone();
    let watched = (context.clone(), index.clone(), wakes.clone());
    let order = records::order_of_queues(&context.settings);
    let mut projector = Projector { context, index, wakes, warm, follower, order };
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        () = watch_index(&watched.0, &watched.1, &watched.2) => Ok(()),
        () = projector.follow() => Ok(()),
    }
}

/// Detects what no event reports: a Redis that lost the index while no events arrived, and an event stream that was
/// replaced while the connection was lost.
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
    /// Names of the orders of the queues.
    order: String,
}

impl Projector {
    async fn follow(&mut self) {
        self.adopt_order().await;
        self.resume().await;
        loop {
            // Outside the select: cancelling it would leave a half-created consumer behind.
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

    /// Rebuilds an index whose queues have an order other than the settings' current one: the places of waiting and
    /// new builds could not be compared. Done only at the start, so that of two dispatchers with different settings
    /// the one that was started last prevails.
    async fn adopt_order(&mut self) {
        // If Redis does not answer, the caller waits for it.
        while let Ok(order) = self.index.order().await {
            if order.is_empty() || order == self.order {
                return;
            }
            info!(before = order, now = self.order, "changing the order of the queues");
            if self.rebuild().await {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Finds the position to continue from; rebuilds the index if there is none.
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
                    info!(%watermark, "the index is behind, reading again from its position");
                    self.follower.seek(watermark);
                    return;
                }
                Ok(Applied::Empty | Applied::Lost) => return self.resume().await,
                Ok(Applied::Rebuilding) => {}
                Err(error) => warn!(error = telemetry::error_chain(&error), "cannot apply events, retrying"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Rebuilds the index from the last lifecycle message of every build. Returns false if it must be retried.
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
            let loaded = self.index.load(&token, &events).await.inspect_err(log_failed_rebuild);
            if !matches!(loaded, Ok(Applied::Done)) {
                return false;
            }
        }
        let watermark = self.follower.cursor();
        let finished = self.index.finish_rebuild(&token, watermark, &self.order).await;
        if !matches!(finished.inspect_err(log_failed_rebuild), Ok(true)) {
            return false;
        }
        count(Counter::IndexRebuilds, &[], 1);
        info!(builds, %watermark, seconds = begun.elapsed().as_secs_f64(), "index rebuilt");
        // Workspaces are not in the stream: request heartbeats, which report what is free.
        if let Err(error) = bus.signal(&Subject::Announce).await {
            let error = telemetry::error_chain(&error);
            warn!(error, "cannot request heartbeats from the workers; waiting for their next ones");
        }
        self.wakes.dispatch.notify_one();
        true
    }

    fn read(&self, batch: &[Stored]) -> (Vec<IndexEvent>, Vec<Option<WorkspaceKeys>>) {
        let read = |stored: &Stored| match records::read(stored, &self.context.settings) {
            Ok(event) => Some(event),
            Err(error) => {
                // Only a record that Forebay did not write; the others are applied.
                error!(
                    error = telemetry::error_chain(&error),
                    "omitting an unreadable lifecycle message from the index"
                );
                None
            }
        };
        batch.iter().filter_map(read).unzip()
    }
}

fn log_failed_rebuild(error: &IndexError) {
    warn!(error = telemetry::error_chain(error), "cannot rebuild the index; retrying");
}
