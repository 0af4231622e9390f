//! Reading stored messages: the last on a subject, the last on each of many subjects in one round trip, and pages.

use std::time::{Duration, SystemTime};

use async_nats::{StatusCode, jetstream::stream::RawMessageErrorKind};
use bytes::Bytes;
use futures::StreamExt as _;
use model::{Millis, Sequence};
use serde::Serialize;

use crate::{Bus, BusError, Stored, codec::to_json, several};

/// Part of a stream's messages.
#[derive(Debug)]
pub struct Tail {
    /// The messages, in order.
    pub events: Vec<Stored>,
    /// Whether more messages may follow.
    pub more: bool,
}

/// State of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamState {
    /// Time at which the stream was created, by the server's clock.
    pub created: Millis,
    pub first: Sequence,
    pub last: Sequence,
    pub messages: u64,
    /// Size of all messages in bytes.
    pub bytes: u64,
    /// Maximum size in bytes; `None` without a limit.
    pub bytes_max: Option<u64>,
}

/// State of a durable consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerState {
    /// Number of messages that were not delivered yet.
    pub pending: u64,
    /// Number of messages that were delivered and are not acknowledged.
    pub ack_pending: u64,
    /// Maximum of `ack_pending`; `None` without a limit.
    pub ack_pending_max: Option<u64>,
    /// Number of messages that were delivered more than once and are not acknowledged.
    pub redelivered: u64,
    /// Number of requests that wait for messages.
    pub pulls: u64,
    /// Position up to which all messages are acknowledged.
    pub floor: Sequence,
}

#[derive(Serialize)]
struct MultiGet<'a> {
    multi_last: &'a [String],
    batch: usize,
}

#[derive(Serialize)]
struct BatchGet<'a> {
    seq: u64,
    next_by_subj: &'a str,
    batch: usize,
    max_bytes: usize,
}

/// Maximum size of one batch in bytes: its reader holds all of it in memory.
const BATCH_BYTES: usize = 512 << 10;
const BATCH_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of subjects in one request, well below the server's limit of 1,024.
const SUBJECTS_MAX: usize = 500;

/// A stream of the bus: its messages and its state.
#[derive(Debug, Clone, Copy)]
pub struct StoredStream<'a> {
    pub(crate) bus: &'a Bus,
    pub(crate) name: &'a str,
}

impl Bus {
    /// Reads the messages of a stream.
    pub fn stream<'a>(&'a self, name: &'a str) -> StoredStream<'a> {
        StoredStream { bus: self, name }
    }
}

impl StoredStream<'_> {
    /// Reads the last message on `subject` from any replica.
    pub(crate) async fn last_direct(self, subject: &str) -> Result<Option<Stored>, BusError> {
        let what = || format!("reading the last message on {subject}");
        let request = format!("$JS.API.DIRECT.GET.{}.{subject}", self.name);
        let asked = Box::pin(self.bus.client.request(request.clone(), Bytes::new()));
        let reply = self.bus.unless_denied(&request, asked).await?.map_err(BusError::failed(what()))?;
        if reply.status == Some(StatusCode::NOT_FOUND) {
            return Ok(None);
        }
        Ok(Stored::from_direct(reply))
    }

    /// Reads the last message on `subject` from the stream's leader, or from any replica if the user may not ask the leader.
    pub async fn last(self, subject: &str) -> Result<Option<Stored>, BusError> {
        if !self.bus.reads(self.name).await {
            return self.last_direct(subject).await;
        }
        let what = || format!("reading the last message on {subject}");
        let handle = self.bus.js.get_stream_no_info(self.name).await.map_err(BusError::failed(what()))?;
        match handle.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(Stored::from_raw(message))),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(BusError::failed(what())(error)),
        }
    }

    /// Reads the last message on each of `subjects`, in no particular order.
    pub async fn last_of_many(self, subjects: &[String]) -> Result<Vec<Stored>, BusError> {
        let mut found = Vec::with_capacity(subjects.len());
        for part in subjects.chunks(SUBJECTS_MAX) {
            let request = MultiGet { multi_last: part, batch: SUBJECTS_MAX };
            found.extend(self.direct_batch(to_json(&request)).await?.events);
        }
        Ok(found)
    }

    /// Reads up to `batch` messages on `subjects` (a filter) from position `from` on.
    pub async fn read_from(self, subjects: &str, from: Sequence, batch: usize) -> Result<Tail, BusError> {
        let request = BatchGet { seq: from.0.max(1), next_by_subj: subjects, batch, max_bytes: BATCH_BYTES };
        self.direct_batch(to_json(&request)).await
    }

    /// Sends one request and collects its replies until a status message ends them.
    async fn direct_batch(self, request: Bytes) -> Result<Tail, BusError> {
        let stream = self.name;
        let what = || format!("reading a batch of {stream}");
        let subject = format!("$JS.API.DIRECT.GET.{stream}");
        let mut replies = several::ask(&self.bus.client, subject, request, &what()).await?;
        let mut events = Vec::new();
        loop {
            let next = tokio::time::timeout(BATCH_TIMEOUT, replies.next()).await;
            let Ok(Some(message)) = next else { return Err(BusError::Timeout { what: what() }) };
            match message.status {
                None => events.extend(Stored::from_direct(message)),
                // End of batch, or an empty batch.
                Some(status) if status.as_u16() == 204 => {
                    let pending = crate::header(message.headers.as_ref(), "Nats-Num-Pending");
                    let more = pending.and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n > 0);
                    return Ok(Tail { events, more });
                }
                Some(StatusCode::NOT_FOUND) => return Ok(Tail { events, more: false }),
                Some(status) => {
                    let text = message.description.unwrap_or_default();
                    return Err(BusError::failed(what())(format!("status {status}: {text}")));
                }
            }
        }
    }

    /// Reads the first message on `subjects` (a filter) from position `from` on, from the stream's leader. A message of a
    /// work queue stays in it.
    pub async fn first_from(self, subjects: &str, from: Sequence) -> Result<Option<Stored>, BusError> {
        let what = || format!("reading {} from position {from}", self.name);
        let handle = self.bus.js.get_stream_no_info(self.name).await.map_err(BusError::failed(what()))?;
        match handle.get_first_raw_message_by_subject(subjects, from.0.max(1)).await {
            Ok(message) => Ok(Some(Stored::from_raw(message))),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(BusError::failed(what())(error)),
        }
    }

    pub async fn state(self) -> Result<StreamState, BusError> {
        let what = || format!("reading the state of {}", self.name);
        let handle = self.bus.js.get_stream_no_info(self.name).await.map_err(BusError::failed(what()))?;
        let info = handle.get_info().await.map_err(BusError::failed(what()))?;
        Ok(StreamState {
            created: SystemTime::from(info.created).into(),
            first: Sequence(info.state.first_sequence),
            last: Sequence(info.state.last_sequence),
            messages: info.state.messages,
            bytes: info.state.bytes,
            bytes_max: u64::try_from(info.config.max_bytes).ok().filter(|bytes| *bytes > 0),
        })
    }

    /// Reads the state of the durable consumer `name`.
    pub async fn consumer(self, name: &str) -> Result<ConsumerState, BusError> {
        let what = || format!("reading the state of consumer {name} of {}", self.name);
        let handle = self.bus.js.get_stream_no_info(self.name).await.map_err(BusError::failed(what()))?;
        let info = handle.consumer_info(name).await.map_err(BusError::failed(what()))?;
        Ok(ConsumerState {
            pending: info.num_pending,
            ack_pending: info.num_ack_pending as u64,
            ack_pending_max: u64::try_from(info.config.max_ack_pending).ok().filter(|most| *most > 0),
            redelivered: info.num_redelivered as u64,
            pulls: info.num_waiting as u64,
            floor: Sequence(info.ack_floor.stream_sequence),
        })
    }

    /// First and last position.
    pub async fn positions(self) -> Result<(Sequence, Sequence), BusError> {
        let state = self.state().await?;
        Ok((state.first, state.last))
    }
}
