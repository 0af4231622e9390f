//! State changes by compare-and-set on the subject of a build or an execution.

use std::time::Duration;

use async_nats::{
    HeaderMap,
    jetstream::{
        self,
        context::{PublishError, PublishErrorKind},
        message::PublishMessage,
    },
};
use bytes::Bytes;
use invariant::Present as _;
use model::{BuildRecord, ExecutionRecord, RoomReport, Sequence};
use telemetry::metrics::{Counter, Histogram, count, observe};
use tokio::time::Instant;
use tracing::debug;

use crate::{
    Bus, BusError, Encoding, Lifecycle, Message as _, Stored,
    headers::{CONTENT_TYPE, EXPECTED, ROOM, SEAL, TRACEPARENT, WRITER, header},
};

/// Outcome of a transition.
#[derive(Debug, Clone)]
pub enum Written<R = BuildRecord> {
    /// The record is the last message on its subject, at this position.
    Won(Sequence),
    /// Another transition came first; this is the last record now.
    Lost(Option<Box<(Sequence, R)>>),
}

const RETRY_DELAY: Duration = Duration::from_millis(50);

impl Bus {
    /// Writes `record` as the next message on its subject if the last one there is at `expected` (0 if there must be
    /// none). An uncertain answer is resolved by reading back, for at most `patience`.
    pub async fn transition<R: Lifecycle>(
        &self,
        record: &R,
        expected: Sequence,
        patience: Duration,
    ) -> Result<Written<R>, BusError> {
        self.write_record(Write::of(record, expected), patience).await
    }

    /// Like [`Bus::transition`]; the message also carries the room of the executor that writes it.
    pub async fn transition_with_room(
        &self,
        record: &ExecutionRecord,
        expected: Sequence,
        room: &RoomReport,
        patience: Duration,
    ) -> Result<Written<ExecutionRecord>, BusError> {
        let mut write = Write::of(record, expected);
        let room = room.to_json();
        let text = std::str::from_utf8(&room).present("JSON that is not UTF-8");
        write.headers.insert(ROOM, text);
        self.write_record(write, patience).await
    }

    async fn write_record<R: Lifecycle>(
        &self,
        mut write: Write,
        patience: Duration,
    ) -> Result<Written<R>, BusError> {
        if let Some(seals) = self.seals.as_ref().filter(|_| write.expected == Sequence(0)) {
            write.headers.insert(SEAL, seals.of(&write.subject, &write.payload).as_str());
        }
        match self.compare_and_set(&write, patience).await? {
            Ok(sequence) => Ok(Written::Won(sequence)),
            Err(None) => Ok(Written::Lost(None)),
            Err(Some(stored)) => Ok(Written::Lost(Some(Box::new((stored.sequence, stored.read()?))))),
        }
    }

    /// The single compare-and-set of the bus: `Ok(position)` if the write is stored, `Err(last)` if
    /// another write came first.
    pub(crate) async fn compare_and_set(
        &self,
        write: &Write,
        patience: Duration,
    ) -> Result<Result<Sequence, Option<Stored>>, BusError> {
        let deadline = Instant::now() + patience;
        loop {
            let error =
                match self.publish_once(&write.subject, write.headers.clone(), write.payload.clone()).await {
                    Ok(sequence) => return Ok(Ok(sequence)),
                    Err(error) => error,
                };
            if error.kind() == PublishErrorKind::MaxPayloadExceeded {
                return Err(BusError::TooLarge { what: format!("a message on {}", write.subject) });
            }
            debug!(subject = %write.subject, %error, "the result of a write is uncertain, reading it back");
            match self.stream(write.stream).last(&write.subject).await {
                Ok(Some(last)) if header(last.headers.as_ref(), WRITER) == Some(&write.writer) => {
                    return Ok(Ok(last.sequence));
                }
                Ok(last) => {
                    let at = last.as_ref().map_or(Sequence(0), |stored| stored.sequence);
                    // A replica may not have the last message yet, which came after the expected one.
                    let is_old = at < write.expected && !self.reads(write.stream).await;
                    if at != write.expected && (!is_old || Instant::now() >= deadline) {
                        return Ok(Err(last));
                    }
                }
                Err(read) if Instant::now() >= deadline => return Err(read),
                Err(_) => {}
            }
            if Instant::now() >= deadline {
                return Err(BusError::failed(format!("writing to {}", write.subject))(error));
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Stores one message. Every stored message passes here, except rejections.
    pub(crate) async fn publish_once(
        &self,
        subject: &str,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<Sequence, PublishError> {
        let message = PublishMessage::build().headers(headers).payload(payload);
        let start = Instant::now();
        let stored = self.acknowledged(subject, message).await;
        match &stored {
            Ok(_) => observe(Histogram::BusPublishSeconds, &[], start.elapsed()),
            Err(error) if is_conflict(error) => {}
            Err(_) => count(Counter::BusPublishFailures, &[], 1),
        }
        stored
    }

    async fn acknowledged(&self, subject: &str, message: PublishMessage) -> Result<Sequence, PublishError> {
        let ack = self.js.send_publish(subject.to_owned(), message).await?.await?;
        Ok(Sequence(ack.sequence))
    }
}

pub(crate) struct Write {
    stream: &'static str,
    subject: String,
    /// Position of the last message on the subject; the write happens only if it still is.
    expected: Sequence,
    /// Random identity of this write, so that it can be recognised after an uncertain answer.
    writer: String,
    pub(crate) headers: HeaderMap,
    payload: Bytes,
}

impl Write {
    /// Creates the message of a record.
    fn of<R: Lifecycle>(record: &R, expected: Sequence) -> Self {
        let mut write = Self::new(R::STREAM, record.subject(), expected, record.to_json());
        write.headers.insert(CONTENT_TYPE, Encoding::Json.content_type());
        if let Some(trace) = record.traceparent() {
            write.headers.insert(TRACEPARENT, trace);
        }
        write
    }

    /// Creates the next message on `subject`, written if the last one there is at `expected` (0 if
    /// there must be none).
    pub(crate) fn new(stream: &'static str, subject: String, expected: Sequence, payload: Bytes) -> Self {
        let writer = format!("{:032x}", uuid::Uuid::new_v4().as_u128());
        let mut headers = HeaderMap::new();
        headers.insert(WRITER, writer.as_str());
        headers.insert(EXPECTED, expected.0.to_string().as_str());
        Self { stream, subject, expected, writer, headers, payload }
    }
}

/// Whether a publish failed because another write came first: error 10071, and 10164, which three nodes return under
/// contention and the client does not map.
pub(crate) fn is_conflict(error: &PublishError) -> bool {
    use std::error::Error as _;
    error.kind() == PublishErrorKind::WrongLastSequence
        || error.source().and_then(|source| source.downcast_ref::<jetstream::Error>()).is_some_and(|inner| {
            inner.error_code() == jetstream::ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT
        })
}
