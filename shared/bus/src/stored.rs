//! A stored message, with what the stream adds to it.

use std::time::SystemTime;

use async_nats::{HeaderMap, jetstream::message::StreamMessage};
use bytes::Bytes;
use model::{BuildRecord, BuildRequest, ExecutionRecord, Millis, RoomReport, Sequence};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tracing::debug;

use crate::{
    BusError, DecodeError, Encoding, FromClient as _, FromJson,
    headers::{CONTENT_TYPE, ROOM, header},
};

#[derive(Debug, Clone)]
pub struct Stored {
    pub subject: String,
    /// Position in the stream.
    pub sequence: Sequence,
    /// Time at which the server stored it, by the server's clock.
    pub at: Millis,
    pub headers: Option<HeaderMap>,
    pub payload: Bytes,
}

impl Stored {
    /// Parses the payload as a build's record.
    pub fn record(&self) -> Result<BuildRecord, BusError> {
        self.read()
    }

    /// Parses the payload as an execution's record.
    pub fn execution(&self) -> Result<ExecutionRecord, BusError> {
        self.read()
    }

    /// Parses the payload as a JSON message of type `T`, which may have fewer fields than the message.
    pub fn read<T: FromJson>(&self) -> Result<T, BusError> {
        T::from_json(&self.payload).map_err(|source| self.corrupt(source))
    }

    /// Parses the payload as a build request, in either encoding.
    pub fn request(&self) -> Result<BuildRequest, BusError> {
        let encoding = Encoding::of(header(self.headers.as_ref(), CONTENT_TYPE), &self.payload);
        BuildRequest::decode(encoding, &self.payload).map_err(|source| self.corrupt(source))
    }

    /// The room of the executor that wrote the record, if the message carries it.
    pub fn room(&self) -> Option<RoomReport> {
        let text = header(self.headers.as_ref(), ROOM)?;
        let read = RoomReport::from_json(text.as_bytes());
        read.inspect_err(|error| debug!(subject = %self.subject, %error, "ignoring an unreadable room")).ok()
    }

    fn corrupt(&self, source: DecodeError) -> BusError {
        BusError::Corrupt { sequence: self.sequence.0, subject: self.subject.clone(), source }
    }

    /// A message that the stream's leader returned.
    pub(crate) fn from_raw(message: StreamMessage) -> Self {
        Self {
            subject: message.subject.to_string(),
            sequence: Sequence(message.sequence),
            at: SystemTime::from(message.time).into(),
            headers: Some(message.headers),
            payload: message.payload,
        }
    }

    /// Parses the reply of a direct get.
    pub(crate) fn from_direct(message: async_nats::Message) -> Option<Self> {
        let headers = message.headers?;
        let subject = headers.get("Nats-Subject")?.as_str().to_owned();
        let sequence = headers.get("Nats-Sequence")?.as_str().parse().ok()?;
        let at = OffsetDateTime::parse(headers.get("Nats-Time-Stamp")?.as_str(), &Rfc3339).ok()?;
        Some(Self {
            subject,
            sequence: Sequence(sequence),
            at: SystemTime::from(at).into(),
            headers: Some(headers),
            payload: message.payload,
        })
    }

    /// Parses a message of a live subject, and returns the position of the previous one on the same subject.
    pub(crate) fn from_live(message: async_nats::Message) -> Option<(Self, Sequence)> {
        let headers = message.headers.as_ref()?;
        let previous = headers.get("Nats-Last-Sequence")?.as_str().parse().ok()?;
        Self::from_direct(message).map(|stored| (stored, Sequence(previous)))
    }
}
