//! Endless reading from a durable consumer, across reconnections and restarts.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_nats::jetstream::{
    AckKind,
    consumer::{Consumer, pull},
    message::Acker,
};
use futures::{FutureExt as _, StreamExt as _};
use invariant::impossible;
use model::Millis;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{Bus, BusError, Published, Reconnects, elections::ConsumerElections};

/// The messages of a durable consumer. A message is delivered again until it is done.
///
/// Requests only as many as the caller has room for: messages waiting here would be withheld from other replicas.
pub struct WorkQueue {
    consumer: Consumer<pull::Config>,
    batch: Option<pull::Batch>,
    reconnects: Reconnects,
    elections: ConsumerElections,
}

/// How many messages of a queue are handled at once.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of messages handled at once.
    pub at_once: u32,
    /// Number of messages to request at once; `None`: as many as can be handled.
    pub batch: Option<usize>,
    /// Time limit for messages in progress when the service stops; those that take longer are delivered again.
    pub drain: Duration,
}

/// What becomes of a message after it was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// It is removed from the queue.
    Done,
    /// It is delivered again after a short delay.
    Again,
    /// It is delivered again after this delay.
    Later(Duration),
}

/// A message of a queue.
#[derive(Debug)]
pub struct Delivery {
    pub message: Published,
    /// Number of deliveries of this message, including this one.
    pub count: i64,
    /// Time at which the server stored it, by the server's clock, if it is known.
    pub stored_at: Option<Millis>,
}

/// Time for which the server keeps a request while there are no messages.
const PULL_EXPIRY: Duration = Duration::from_secs(30);
const RETRY_DELAY: Duration = Duration::from_millis(200);

impl WorkQueue {
    /// Creates a queue of the messages of `consumer`.
    pub async fn open(bus: &Bus, consumer: Consumer<pull::Config>) -> Result<Self, BusError> {
        let info = consumer.cached_info();
        let elections = bus.consumer_elections(&info.stream_name, &info.name).await?;
        Ok(Self { consumer, batch: None, reconnects: bus.reconnects(), elections })
    }

    /// Handles messages until `stop`, then waits for those in progress. Messages that are not `wanted` are removed
    /// from the queue without being handled.
    pub async fn serve<F: Future<Output = Handled> + Send + 'static>(
        mut self,
        limits: Limits,
        stop: &CancellationToken,
        wanted: impl Fn(&Published) -> bool,
        handle: impl Fn(Delivery) -> F,
    ) {
        let permits = Arc::new(Semaphore::new(limits.at_once as usize));
        loop {
            // A permit comes first: a message that waits here is withheld from other replicas.
            // While all are in use, nothing is taken from the queue.
            let permit = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                permit = Arc::clone(&permits).acquire_owned() => permit,
            };
            let Ok(permit) = permit else {
                impossible!("the semaphore of a queue is closed");
                break;
            };
            let room = || limits.batch.unwrap_or_else(|| permits.available_permits() + 1);
            let (delivery, acker) = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                next = self.next_wanted(&wanted, room) => next,
            };
            let handled = handle(delivery);
            tokio::spawn(async move {
                match handled.await {
                    Handled::Done => acknowledge(&acker).await,
                    Handled::Again => give_back(&acker, RETRY_DELAY).await,
                    Handled::Later(delay) => give_back(&acker, delay).await,
                }
                drop(permit);
            });
        }
        // Messages that take longer are not acknowledged and are delivered again.
        let _ = tokio::time::timeout(limits.drain, permits.acquire_many(limits.at_once)).await;
    }

    /// Acknowledges messages until a wanted one comes. May be dropped without losing a message.
    async fn next_wanted(
        &mut self,
        wanted: impl Fn(&Published) -> bool,
        room: impl Fn() -> usize,
    ) -> (Delivery, Acker) {
        loop {
            let (delivery, acker) = self.next(&room).await;
            if wanted(&delivery.message) {
                return (delivery, acker);
            }
            acknowledge(&acker).await;
        }
    }

    /// Returns the next message; `room` returns how many to request when a new request is due. May be dropped and
    /// repeated without losing a message.
    async fn next(&mut self, room: impl Fn() -> usize) -> (Delivery, Acker) {
        loop {
            let Some(batch) = self.batch.as_mut() else {
                self.pull(room().max(1)).await;
                continue;
            };
            // A request that was in flight when the connection broke, or that a server had which leads the consumer no
            // more, is never answered.
            let message = tokio::select! {
                biased;
                () = self.reconnects.next() => None,
                message = batch.next() => message,
                () = self.elections.next() => None,
            };
            match message {
                Some(Ok(message)) => {
                    let (count, stored_at) = message.info().map_or((1, None), |info| {
                        (info.delivered, Some(SystemTime::from(info.published).into()))
                    });
                    let (message, acker) = message.split();
                    return (Delivery { message: Published::of(message), count, stored_at }, acker);
                }
                Some(Err(error)) => {
                    debug!(%error, "the request for messages failed, retrying");
                    self.batch = None;
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                None => self.batch = None,
            }
        }
    }

    async fn pull(&mut self, room: usize) {
        // Elections until now do not concern this request.
        while self.elections.next().now_or_never().is_some() {}
        match self.consumer.batch().max_messages(room).expires(PULL_EXPIRY).messages().await {
            Ok(batch) => self.batch = Some(batch),
            Err(error) => {
                debug!(%error, "the request for messages failed, retrying");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}

async fn acknowledge(acker: &Acker) {
    if let Err(error) = acker.ack().await {
        debug!(%error, "cannot acknowledge a message; it is delivered again");
    }
}

async fn give_back(acker: &Acker, delay: Duration) {
    if let Err(error) = acker.ack_with(AckKind::Nak(Some(delay))).await {
        debug!(%error, "cannot return a message; it is delivered again later");
    }
}

impl std::fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkQueue").finish_non_exhaustive()
    }
}
