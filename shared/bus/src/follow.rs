//! Reading a stream in order, for ever, through reconnections, restarts and lost consumers.

use std::time::{Duration, SystemTime};

use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, DeliverPolicy, pull},
};
use futures::{FutureExt as _, StreamExt as _};
use model::Sequence;
use tracing::{debug, warn};

use crate::{Bus, BusError, Reconnects, Stored};

/// Where a follower starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Behind this position.
    After(Sequence),
    /// With the last message of every subject, then everything that follows.
    LastOfEachSubject,
}

/// Reads the messages of a stream that match a filter, each once, in order.
///
/// The library's ordered consumer replays the stream when it is recreated before its first message; this one
/// keeps its own position and drops what it has seen.
#[derive(Debug)]
pub struct Follower {
    bus: Bus,
    stream: &'static str,
    filter: &'static str,
    start: Start,
    cursor: Sequence,
    source: Option<Source>,
    reconnects: Reconnects,
}

struct Source {
    messages: pull::Stream,
    /// Messages the server still had to deliver at the last one received.
    pending: u64,
    delivered: u64,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("pending", &self.pending).finish_non_exhaustive()
    }
}

const HEARTBEAT: Duration = Duration::from_secs(15);
const RETRY_DELAY: Duration = Duration::from_millis(100);

impl Follower {
    /// A follower of `stream`; nothing is asked of the server yet.
    pub fn new(bus: &Bus, stream: &'static str, filter: &'static str, start: Start) -> Self {
        let cursor = match start {
            Start::After(sequence) => sequence,
            Start::LastOfEachSubject => Sequence(0),
        };
        Self { bus: bus.clone(), stream, filter, start, cursor, source: None, reconnects: bus.reconnects() }
    }

    /// The position up to which everything was handed out.
    pub fn cursor(&self) -> Sequence {
        self.cursor
    }

    /// Whether all that was stored when the last message was read has been handed out.
    pub fn caught_up(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.pending == 0)
    }

    /// Starts over behind `sequence`.
    pub fn seek(&mut self, sequence: Sequence) {
        self.start = Start::After(sequence);
        self.cursor = sequence;
        self.source = None;
    }

    /// Opens the consumer when there is none, trying until it works.
    pub async fn open(&mut self) {
        while self.source.is_none() {
            match self.try_open().await {
                Ok(source) => self.source = Some(source),
                Err(error) => {
                    warn!(stream = self.stream, %error, "cannot follow, trying again");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// The next messages: waits for one, then takes what else has arrived, up to `max`.
    pub async fn next(&mut self, max: usize) -> Vec<Stored> {
        let mut batch = Vec::new();
        while batch.is_empty() {
            self.open().await;
            let Some(source) = self.source.as_mut() else { continue };
            let first = tokio::select! {
                message = source.messages.next() => message,
                () = self.reconnects.next() => None,
            };
            let mut next = first;
            loop {
                match next {
                    Some(Ok(message)) => {
                        if !self.take(message, &mut batch) {
                            break;
                        }
                    }
                    Some(Err(error)) => {
                        debug!(stream = self.stream, %error, "following anew");
                        self.reopen();
                        break;
                    }
                    None => {
                        self.reopen();
                        break;
                    }
                }
                if batch.len() >= max {
                    break;
                }
                let Some(source) = self.source.as_mut() else { break };
                match source.messages.next().now_or_never() {
                    Some(more) => next = more,
                    None => break,
                }
            }
        }
        batch
    }

    /// Puts `message` into `batch`; false when one before it is missing and the consumer was dropped.
    fn take(&mut self, message: jetstream::Message, batch: &mut Vec<Stored>) -> bool {
        let Some(source) = self.source.as_mut() else { return false };
        let (stream_sequence, consumer_sequence, pending, published) = match message.info() {
            Ok(info) => (info.stream_sequence, info.consumer_sequence, info.pending, info.published),
            Err(error) => {
                debug!(%error, "a message without position");
                self.reopen();
                return false;
            }
        };
        if consumer_sequence != source.delivered + 1 {
            self.reopen();
            return false;
        }
        source.delivered = consumer_sequence;
        source.pending = pending;
        if pending == 0 {
            // From here on every message is wanted, not the last of each subject.
            self.start = Start::After(Sequence(stream_sequence.max(self.cursor.0)));
        }
        if stream_sequence > self.cursor.0 {
            self.cursor = Sequence(stream_sequence);
            let (message, _) = message.split();
            batch.push(Stored {
                subject: message.subject.to_string(),
                sequence: self.cursor,
                at: SystemTime::from(published).into(),
                headers: message.headers,
                payload: message.payload,
            });
        }
        true
    }

    fn reopen(&mut self) {
        self.source = None;
        // With messages in hand the position says it all; without any, the start still holds.
        if self.cursor > Sequence(0) && self.start != Start::LastOfEachSubject {
            self.start = Start::After(self.cursor);
        }
    }

    async fn try_open(&mut self) -> Result<Source, BusError> {
        let deliver_policy = match self.start {
            Start::LastOfEachSubject => DeliverPolicy::LastPerSubject,
            Start::After(sequence) => DeliverPolicy::ByStartSequence { start_sequence: sequence.0 + 1 },
        };
        let config = pull::Config {
            name: Some(format!("follow-{}", uuid::Uuid::new_v4().simple())),
            deliver_policy,
            filter_subject: self.filter.to_owned(),
            ack_policy: AckPolicy::None,
            memory_storage: true,
            num_replicas: 1,
            inactive_threshold: Duration::from_secs(60),
            ..pull::Config::default()
        };
        let what = || format!("following {}", self.stream);
        let consumer = self
            .bus
            .js
            .create_consumer_on_stream(config, self.stream)
            .await
            .map_err(BusError::failed(what()))?;
        let pending = consumer.cached_info().num_pending;
        let messages = consumer
            .stream()
            .max_messages_per_batch(2000)
            .expires(Duration::from_secs(60))
            .heartbeat(HEARTBEAT)
            .messages()
            .await
            .map_err(BusError::failed(what()))?;
        Ok(Source { messages, pending, delivered: 0 })
    }
}
