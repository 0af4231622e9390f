//! Endless reading from a durable consumer, across reconnections and restarts.

use std::time::Duration;

use async_nats::jetstream::{
    Message,
    consumer::{Consumer, pull},
};
use futures::StreamExt as _;
use tracing::debug;

use crate::{Bus, Reconnects};

/// The messages of a durable consumer. Each must be acknowledged, or it is delivered again.
///
/// Requests only as many as the caller has room for: messages waiting here would be withheld from other replicas.
pub struct WorkQueue {
    consumer: Consumer<pull::Config>,
    batch: Option<pull::Batch>,
    reconnects: Reconnects,
}

/// Time for which the server keeps a request while there are no messages.
const PULL_EXPIRY: Duration = Duration::from_secs(30);
const RETRY_DELAY: Duration = Duration::from_millis(200);

impl WorkQueue {
    /// Creates a queue of the messages of `consumer`.
    pub fn new(bus: &Bus, consumer: Consumer<pull::Config>) -> Self {
        Self { consumer, batch: None, reconnects: bus.reconnects() }
    }

    /// Returns the next message. `room` returns how many to request when a new request is due. Cancellation-safe: the
    /// call may be dropped and repeated without losing a message.
    pub async fn next(&mut self, room: impl Fn() -> usize) -> Message {
        loop {
            let Some(batch) = self.batch.as_mut() else {
                self.pull(room().max(1)).await;
                continue;
            };
            // A request that was in flight when the connection broke is never answered.
            let message = tokio::select! {
                biased;
                () = self.reconnects.next() => None,
                message = batch.next() => message,
            };
            match message {
                Some(Ok(message)) => return message,
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
        match self.consumer.batch().max_messages(room).expires(PULL_EXPIRY).messages().await {
            Ok(batch) => self.batch = Some(batch),
            Err(error) => {
                debug!(%error, "the request for messages failed, retrying");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}

impl std::fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkQueue").finish_non_exhaustive()
    }
}
