//! Follows the log, and resumes or rebuilds the index when necessary.

use std::time::Duration;

use bus::{Bus, BusError, Follower, Start, Stored};
use futures::future::join_all;
use index::{Applied, IndexError, RebuildToken};
use model::Sequence;
use service::{Context, ServiceError, crash_point};
use telemetry::metrics::{Counter, count};
use tracing::{error, info, warn};

use crate::Projection;

const BATCH: usize = 1000;
/// Messages that are read at a time: for some of them, the first one on their subject is requested.
const READS: usize = 64;
/// Maximum time for which a Redis that lost the index goes unnoticed while no messages arrive.
const CHECK: Duration = Duration::from_secs(2);
/// Interval at which the right to rebuild is renewed; well below its lifetime.
const KEEP: Duration = Duration::from_secs(1);
/// Maximum time for which the right is renewed while the log cannot be read.
const OPEN_MAX: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(100);

/// Maintains the index until the service stops.
pub async fn run<P: Projection>(context: Context, projection: P) -> Result<(), ServiceError> {
    let follower = Follower::new(&context.bus, P::STREAM, P::SUBJECTS, Start::After(Sequence(0)));
    let mut projector = Projector { bus: &context.bus, projection: &projection, follower };
    tokio::select! {
        () = context.stop.cancelled() => Ok(()),
        () = watch_index(&context.bus, &projection) => Ok(()),
        () = projector.follow() => Ok(()),
    }
}

/// Detects what no message reports: a Redis that lost the index while no messages arrived, and a stream that was
/// replaced while the connection was lost.
async fn watch_index<P: Projection>(bus: &Bus, projection: &P) {
    let mut reconnects = bus.reconnects();
    loop {
        tokio::select! {
            () = tokio::time::sleep(CHECK) => {
                if matches!(projection.health().await, Ok(None)) {
                    projection.missing().notify_one();
                }
            }
            () = reconnects.next() => projection.missing().notify_one(),
        }
    }
}

struct Projector<'a, P> {
    bus: &'a Bus,
    projection: &'a P,
    follower: Follower,
}

impl<P: Projection> Projector<'_, P> {
    async fn follow(&mut self) {
        self.replace_outdated().await;
        self.resume().await;
        loop {
            // Outside the select: cancelling it would leave a half-created consumer behind.
            self.follower.open().await;
            let from = self.follower.cursor();
            let batch = tokio::select! {
                batch = self.follower.next(BATCH) => batch,
                () = self.projection.missing().notified() => {
                    self.resume().await;
                    continue;
                }
            };
            crash_point(P::STEPS.read);
            let records = self.read(&batch).await;
            self.projection.note(&records);
            self.apply(from, &records).await;
        }
    }

    /// Rebuilds an outdated index. Done only at the start, so that of two processes with different settings the one
    /// that was started last prevails.
    async fn replace_outdated(&mut self) {
        while self.projection.is_outdated().await {
            if self.rebuild().await {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Finds the position to continue from; rebuilds the index if there is none.
    async fn resume(&mut self) {
        loop {
            match (self.projection.health().await, self.bus.stream(P::STREAM).positions().await) {
                (Ok(Some(health)), Ok((_, last))) if health.ready && health.watermark <= last => {
                    self.follower.seek(health.watermark);
                    self.projection.ready();
                    return;
                }
                (Ok(_), Ok(_)) => {
                    if self.rebuild().await {
                        return;
                    }
                }
                (Err(error), _) => warn!(error = telemetry::error_chain(&error), "waiting for Redis"),
                (_, Err(error)) => {
                    warn!(error = telemetry::error_chain(&error), "waiting for the {}", P::LOG);
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn apply(&mut self, from: Sequence, records: &[P::Record]) {
        let to = self.follower.cursor();
        loop {
            match self.projection.apply(from, to, records).await {
                Ok(Applied::Done(effects)) => {
                    count(Counter::IndexApplied, &[], records.len() as u64);
                    crash_point(P::STEPS.applied);
                    return self.projection.applied(records, effects).await;
                }
                Ok(Applied::Gap(watermark)) => {
                    info!(%watermark, "the {} is behind, reading again from its position", P::INDEX);
                    self.follower.seek(watermark);
                    return;
                }
                Ok(Applied::Empty | Applied::Lost) => return self.resume().await,
                Ok(Applied::Rebuilding) => {}
                Err(error) => {
                    let error = telemetry::error_chain(&error);
                    warn!(error, "cannot apply messages to the {}, retrying", P::INDEX);
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Rebuilds the index from the log. Returns false if it must be tried again.
    async fn rebuild(&mut self) -> bool {
        let token = match self.projection.begin_rebuild().await {
            Ok(Some(token)) => token,
            Ok(None) => return false,
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot begin to rebuild the {}", P::INDEX);
                return false;
            }
        };
        info!("rebuilding the {} from the {}", P::INDEX, P::LOG);
        crash_point(P::STEPS.rebuild_begun);
        let begun = tokio::time::Instant::now();
        let start = self.projection.rebuild_start().await;
        self.follower = Follower::new(self.bus, P::STREAM, P::SUBJECTS, start);
        self.open_under(&token).await;
        let mut records = 0;
        while !self.follower.caught_up() {
            let batch = self.follower.next(BATCH).await;
            let read = self.read(&batch).await;
            records += read.len();
            let loaded = self.projection.load(&token, &read).await.inspect_err(log_failed_rebuild::<P>);
            if !matches!(loaded, Ok(Applied::Done(_))) {
                return false;
            }
        }
        let watermark = self.follower.cursor();
        let finished = self.projection.finish_rebuild(&token, watermark).await;
        if !matches!(finished.inspect_err(log_failed_rebuild::<P>), Ok(true)) {
            return false;
        }
        count(Counter::IndexRebuilds, &[], 1);
        info!(records, %watermark, seconds = begun.elapsed().as_secs_f64(), "{} rebuilt", P::INDEX);
        self.projection.rebuilt().await;
        self.projection.ready();
        true
    }

    /// Opens the follower, and renews the right to rebuild during that time, which is long with many subjects. A process
    /// that cannot reach the log loses the right after [`OPEN_MAX`], so that another one rebuilds the index.
    async fn open_under(&mut self, token: &RebuildToken) {
        let until = tokio::time::Instant::now() + OPEN_MAX;
        let mut open = std::pin::pin!(self.follower.open());
        loop {
            tokio::select! {
                () = &mut open => return,
                () = tokio::time::sleep(KEEP), if tokio::time::Instant::now() < until => {
                    // If the right is lost, the first load of records reports it.
                    let _ = self.projection.load(token, &[]).await;
                }
            }
        }
    }

    async fn read(&self, batch: &[Stored]) -> Vec<P::Record> {
        let mut records = Vec::with_capacity(batch.len());
        for part in batch.chunks(READS) {
            let reads: Vec<_> = part.iter().map(|stored| self.read_one(stored)).collect();
            records.extend(join_all(reads).await.into_iter().flatten());
        }
        records
    }

    async fn read_one(&self, stored: &Stored) -> Option<P::Record> {
        loop {
            let error = match self.projection.read(stored).await {
                Ok(record) => return Some(record),
                Err(error) => error,
            };
            let text = telemetry::error_chain(&error);
            if matches!(error, BusError::Corrupt { .. } | BusError::Unsealed { .. }) {
                // Only a message that no service of the farm wrote; the others are applied.
                error!(error = text, "omitting a message from the {}", P::INDEX);
                return None;
            }
            warn!(error = text, "cannot read a message of the {}; retrying", P::LOG);
            tokio::time::sleep(RETRY).await;
        }
    }
}

fn log_failed_rebuild<P: Projection>(error: &IndexError) {
    warn!(error = telemetry::error_chain(error), "cannot rebuild the {}; retrying", P::INDEX);
}
