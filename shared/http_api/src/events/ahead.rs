//! Reads the events of a build ahead of the client, as far as the client keeps up.
//!
//! A watch buffers new events until they are read. For a client that does not read, that would be everything the
//! build writes, so its watch ends, and a new one starts at the same position when the client reads again.

use std::time::Duration;

use client::{Followed, Following, WatchBody, WatchFilter};
use model::{BuildKey, Sequence};
use tokio::{sync::mpsc, time::timeout};

use crate::{frames::StoreBlobs, state::Api};

/// Maximum number of events read ahead of the client.
const AHEAD: usize = 2;
/// Time after which the watch of a client that does not read ends. Until then its new events are buffered in memory.
const LAG: Duration = Duration::from_millis(50);

/// The next item of a stream.
#[derive(Debug)]
pub(super) enum Next {
    /// An event or a queue position.
    Followed(Followed),
    /// Reading the bus failed; nothing follows.
    BrokeOff,
    /// The build has ended; nothing follows.
    Ended,
}

/// The event stream of one build.
#[derive(Debug)]
pub(super) struct ReadAhead {
    pub(super) api: Api,
    pub(super) key: BuildKey,
    /// Position of the last event that was read.
    pub(super) position: Sequence,
    pub(super) filter: WatchFilter,
}

impl ReadAhead {
    /// Starts a reading task, which ends when the receiver is dropped.
    pub(super) fn start(self) -> mpsc::Receiver<Next> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        tokio::spawn(self.run(sender));
        receiver
    }

    fn follow(&self) -> Following {
        self.api.client.follow(&self.key, self.position, &self.filter)
    }

    async fn run(mut self, sender: mpsc::Sender<Next>) {
        let mut watch = self.follow();
        let mut blobs = StoreBlobs(self.api.cas.clone());
        loop {
            let next = tokio::select! {
                next = watch.next() => next,
                () = self.api.stop.cancelled() => return,
                () = sender.closed() => return,
            };
            let (next, last) = match next {
                Ok(None) => {
                    self.wait_for_reader(&sender, Next::Ended).await;
                    return;
                }
                Ok(Some(mut followed)) => {
                    if let Followed::Event(event) = &mut followed
                        && let WatchBody::Frame(frame) = &mut event.body
                    {
                        frame.read(&mut blobs).await;
                        if frame.is_empty() {
                            continue;
                        }
                    }
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

    /// Records the position and returns whether this is the last event.
    fn pass(&mut self, followed: &Followed) -> bool {
        match followed {
            Followed::Event(event) => {
                self.position = event.position;
                event.is_last()
            }
            Followed::Queue(_) | Followed::Unplaced(_) => false,
        }
    }

    /// Sends `next` once the client reads again; returns false if it does not do so in time.
    async fn wait_for_reader(&self, sender: &mpsc::Sender<Next>, next: Next) -> bool {
        let permit = tokio::select! {
            permit = timeout(self.api.reading, sender.reserve()) => permit,
            () = self.api.stop.cancelled() => return false,
        };
        match permit {
            Ok(Ok(permit)) => {
                permit.send(next);
                true
            }
            Ok(Err(_)) => false,
            Err(_) => {
                let (build, position) = (&self.key, self.position);
                tracing::debug!(%build, %position, "closing a watcher that does not read; it can reconnect");
                false
            }
        }
    }
}
