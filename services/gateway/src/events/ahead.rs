//! Reading a build's events ahead of the client that they are for, as far as that one keeps up.
//!
//! A watch hears what is stored and keeps it until it is asked. Of a client that does not read, that would be all the
//! build writes; so its watch ends, and a new one begins at the same position when it reads again.

use std::time::Duration;

use client::{Followed, Following, WatchKind};
use model::{BuildKey, Sequence};
use tokio::{sync::mpsc, time::timeout};

use crate::routes::Gateway;

/// Events that are read before the client takes them.
const AHEAD: usize = 2;
/// A client that takes nothing for this long has its watch ended. What is stored meanwhile is in memory, for each such client.
const LAG: Duration = Duration::from_millis(50);

/// What comes next of a stream.
#[derive(Debug)]
pub(super) enum Next {
    /// An event, or a place in the queue.
    Followed(Followed),
    /// The bus could not be read; nothing follows.
    BrokeOff,
}

/// A stream of events of one build.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) gateway: Gateway,
    pub(super) key: BuildKey,
    /// The last that was read.
    pub(super) position: Sequence,
    pub(super) kinds: Vec<WatchKind>,
}

impl Ahead {
    /// Reads in a task of its own, which ends when the receiver is dropped.
    pub(super) fn start(self) -> mpsc::Receiver<Next> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        tokio::spawn(self.run(sender));
        receiver
    }

    fn follow(&self) -> Following {
        self.gateway.client.follow(&self.key, self.position, &self.kinds)
    }

    async fn run(mut self, sender: mpsc::Sender<Next>) {
        let mut watch = self.follow();
        loop {
            let next = tokio::select! {
                next = watch.next() => next,
                () = self.gateway.stop.cancelled() => return,
                () = sender.closed() => return,
            };
            let (next, last) = match next {
                Ok(None) => return,
                Ok(Some(followed)) => {
                    let last = self.pass(&followed);
                    (Next::Followed(followed), last)
                }
                Err(error) => {
                    tracing::warn!(
                        build = %self.key,
                        error = telemetry::error_chain(&error),
                        "an event stream ended early"
                    );
                    (Next::BrokeOff, true)
                }
            };
            if let Err(behind) = sender.try_send(next) {
                let next = behind.into_inner();
                if let Ok(Ok(permit)) = timeout(LAG, sender.reserve()).await {
                    permit.send(next);
                } else {
                    drop(watch);
                    if !self.wait_for_reader(&sender, next).await {
                        return;
                    }
                    watch = self.follow();
                }
            }
            if last {
                return;
            }
        }
    }

    /// Notes the position; whether it is the last event.
    fn pass(&mut self, followed: &Followed) -> bool {
        match followed {
            Followed::Event(event) => {
                self.position = event.position;
                event.is_last()
            }
            Followed::Queue(_) | Followed::Unplaced(_) => false,
        }
    }

    /// Whether the client read again in time.
    async fn wait_for_reader(&self, sender: &mpsc::Sender<Next>, next: Next) -> bool {
        let permit = tokio::select! {
            permit = timeout(self.gateway.reading, sender.reserve()) => permit,
            () = self.gateway.stop.cancelled() => return false,
        };
        match permit {
            Ok(Ok(permit)) => {
                permit.send(next);
                true
            }
            Ok(Err(_)) => false,
            Err(_) => {
                let (build, position) = (&self.key, self.position);
                tracing::debug!(%build, %position, "a watcher that reads nothing is closed; it can come back");
                false
            }
        }
    }
}
