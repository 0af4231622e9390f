//! Taking messages from a durable consumer, for ever, through reconnections and restarts.

use std::time::Duration;

use async_nats::jetstream::{
    Message,
    consumer::{Consumer, pull},
};
use futures::StreamExt as _;
use tracing::debug;

use crate::{Bus, Reconnects};

/// The messages of a durable consumer. Each must be acknowledged, or it comes again.
///
/// Asks for as many as there is room for and no more: what lay here unhandled would be withheld from other replicas.
pub struct WorkQueue {
    consumer: Consumer<pull::Config>,
    batch: Option<pull::Batch>,
    reconnects: Reconnects,
}

/// How long the server keeps a request for messages when there are none.
const PULL: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(200);

impl WorkQueue {
    /// The messages of `consumer`.
    pub fn new(bus: &Bus, consumer: Consumer<pull::Config>) -> Self {
        Self { consumer, batch: None, reconnects: bus.reconnects() }
    }

    /// The next message. `room` says how many may be asked for, whenever new ones are. May be dropped and called again
    /// without losing anything.
    pub async fn next(&mut self, room: impl Fn() -> usize) -> Message {
        loop {
            let Some(batch) = self.batch.as_mut() else {
                self.pull(room().max(1)).await;
                continue;
            };
            // A request that was on its way when the connection broke is answered by nobody.
            let message = tokio::select! {
                biased;
                () = self.reconnects.next() => None,
                message = batch.next() => message,
            };
            match message {
                Some(Ok(message)) => return message,
                Some(Err(error)) => {
                    debug!(%error, "asking for messages again");
                    self.batch = None;
                    tokio::time::sleep(RETRY).await;
                }
                None => self.batch = None,
            }
        }
    }

    async fn pull(&mut self, room: usize) {
        match self.consumer.batch().max_messages(room).expires(PULL).messages().await {
            Ok(batch) => self.batch = Some(batch),
            Err(error) => {
                debug!(%error, "asking for messages again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

impl std::fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkQueue").finish_non_exhaustive()
    }
}
