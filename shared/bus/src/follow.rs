//! Endless ordered reading of a stream, across reconnections, restarts and lost consumers.

use std::time::{Duration, SystemTime};

use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, Consumer, DeliverPolicy, pull},
};
use futures::{FutureExt as _, StreamExt as _};
use invariant::impossible;
use model::Sequence;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::{Bus, BusError, Reconnects, Stored, elections::Elections};

/// Position at which a follower starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Start with the first message after this position.
    After(Sequence),
    /// Start with the last message of every subject, then read everything that follows.
    LastOfEachSubject,
}

/// Reads the messages of a stream that match a filter, each once, in order.
///
/// The library's ordered consumer replays the stream when it is recreated before its first message; this one keeps its
/// own position and skips messages that it has already returned.
#[derive(Debug)]
pub struct Follower {
    bus: Bus,
    stream: &'static str,
    filter: &'static str,
    start: Start,
    cursor: Sequence,
    source: Option<Source>,
    reconnects: Reconnects,
    elections: Elections,
}

struct Source {
    consumer: Consumer<pull::Config>,
    messages: pull::Stream,
    /// Whether the consumer may have been lost with a server of the cluster.
    is_doubtful: bool,
    /// Messages that the server had yet to deliver when the last one was received.
    pending: u64,
    delivered: u64,
}

impl Source {
    /// Whether a server still has the consumer. The server of one that is kept in memory may have died with it.
    async fn is_alive(&mut self) -> bool {
        self.is_doubtful = !matches!(timeout(ALIVE_TIMEOUT, self.consumer.get_info()).await, Ok(Ok(_)));
        !self.is_doubtful
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("pending", &self.pending).finish_non_exhaustive()
    }
}

const HEARTBEAT: Duration = Duration::from_secs(15);
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Time limit for a server to describe the consumer that it has.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(1);

impl Follower {
    /// Creates a follower of `stream`; opens no consumer yet. Requires a tokio runtime.
    pub fn new(bus: &Bus, stream: &'static str, filter: &'static str, start: Start) -> Self {
        let cursor = match start {
            Start::After(sequence) => sequence,
            Start::LastOfEachSubject => Sequence(0),
        };
        let (reconnects, elections) = (bus.reconnects(), bus.elections());
        Self { bus: bus.clone(), stream, filter, start, cursor, source: None, reconnects, elections }
    }

    /// The position up to which all messages have been returned.
    pub fn cursor(&self) -> Sequence {
        self.cursor
    }

    /// Whether all messages stored at the time of the last read have been returned.
    pub fn caught_up(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.pending == 0)
    }

    /// Number of messages that the server had yet to deliver at the last read; 0 before the first.
    pub fn pending(&self) -> u64 {
        self.source.as_ref().map_or(0, |source| source.pending)
    }

    /// Restarts after position `sequence`.
    pub fn seek(&mut self, sequence: Sequence) {
        self.start = Start::After(sequence);
        self.cursor = sequence;
        self.source = None;
    }

    /// Opens the consumer if it is not open, retrying until it succeeds.
    pub async fn open(&mut self) {
        while self.source.is_none() {
            match self.try_open().await {
                Ok(source) => self.source = Some(source),
                Err(error) => {
                    warn!(stream = self.stream, %error, "cannot follow the stream, retrying");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Waits for one message, then returns it with the others that have arrived, at most `max` in total.
    pub async fn next(&mut self, max: usize) -> Vec<Stored> {
        let mut batch = Vec::new();
        while batch.is_empty() {
            self.open().await;
            let Some(source) = self.source.as_mut() else {
                impossible!("the consumer of {} is not open after it was opened", self.stream);
                continue;
            };
            if source.is_doubtful && !source.is_alive().await {
                self.reopen();
                continue;
            }
            let first = tokio::select! {
                message = source.messages.next() => message,
                () = self.reconnects.next() => None,
                () = self.elections.next() => {
                    source.is_doubtful = true;
                    continue;
                }
            };
            let mut next = first;
            loop {
                match next {
                    Some(Ok(message)) => {
                        if !self.append(message, &mut batch) {
                            break;
                        }
                    }
                    Some(Err(error)) => {
                        debug!(stream = self.stream, %error, "the consumer failed, reopening it");
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
                let Some(source) = self.source.as_mut() else {
                    impossible!("a message of {} was added and its consumer is not open", self.stream);
                    break;
                };
                match source.messages.next().now_or_never() {
                    Some(more) => next = more,
                    None => break,
                }
            }
        }
        batch
    }

    /// Adds `message` to `batch`. Returns false if an earlier message is missing; the consumer is then dropped.
    fn append(&mut self, message: jetstream::Message, batch: &mut Vec<Stored>) -> bool {
        let Some(source) = self.source.as_mut() else {
            impossible!("a message of {} arrived without a consumer", self.stream);
            return false;
        };
        let (stream_sequence, consumer_sequence, pending, published) = match message.info() {
            Ok(info) => (info.stream_sequence, info.consumer_sequence, info.pending, info.published),
            Err(error) => {
                debug!(%error, "a message has no position, reopening the consumer");
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
            // From here on every message counts, not only the last of each subject.
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
        // Once a message has been read, the cursor is the place to resume; before that, `start` still applies.
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
        Ok(Source { consumer, messages, is_doubtful: false, pending, delivered: 0 })
    }
}
