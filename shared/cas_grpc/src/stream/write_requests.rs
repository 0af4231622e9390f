//! The requests of a `Write` call, as events.

use std::time::Duration;

use bytes::Bytes;
use invariant::Present as _;
use tonic::{Status, body::Body};

use super::{
    parse::{Parser, Part},
    wire,
};

/// Maximum size in bytes of an unneeded upload that is read to its end, so that the stream is not reset.
const DRAIN_BYTES: u64 = 1 << 20;

/// Maximum delay of the end of a stream after its last request.
const SETTLE: Duration = Duration::from_millis(100);

/// The next event of a write.
#[derive(Debug)]
pub(super) enum Event {
    Data(Bytes),
    /// The client declared the write complete.
    Finish,
    /// The client ended the stream.
    Closed,
}

/// The requests of a write, checked for consistency.
#[derive(Debug)]
pub(super) struct WriteRequests {
    body: Body,
    /// Maximum pause of the client.
    pause_max: Duration,
    parser: Parser,
    pub(super) name: String,
    first_offset: i64,
    /// Offset of the next byte, as counted by the client.
    expected: i64,
    /// Offset in the current message, and whether it was checked.
    offset: i64,
    checked: bool,
    /// Whether the client has declared the write complete.
    pub(super) finish: bool,
    /// The first part of the data, read together with the name.
    ahead: Option<Event>,
}

impl WriteRequests {
    /// Reads the stream up to the resource name.
    pub(super) async fn open(body: Body, pause_max: Duration) -> Result<Self, Status> {
        let mut pieces = Self {
            body,
            pause_max,
            parser: Parser::new(),
            name: String::new(),
            first_offset: 0,
            expected: 0,
            offset: 0,
            checked: true,
            finish: false,
            ahead: None,
        };
        // Offsets count from the first message.
        let ahead = loop {
            match pieces.part().await? {
                Some(Part::Name(name)) => pieces.name = name,
                Some(Part::Offset(offset)) => pieces.offset = offset,
                Some(Part::Finish) => pieces.finish = true,
                Some(Part::Data(data)) => break Event::Data(data),
                Some(Part::End) if pieces.finish => break Event::Finish,
                Some(Part::End) => {
                    pieces.checked = false;
                    break Event::Data(Bytes::new());
                }
                None => return Err(Status::invalid_argument("the stream contains no request")),
            }
        };
        if pieces.name.is_empty() {
            return Err(Status::invalid_argument("the first request has no resource_name"));
        }
        if pieces.offset < 0 {
            return Err(Status::invalid_argument(format!("write_offset {} is negative", pieces.offset)));
        }
        (pieces.first_offset, pieces.expected) = (pieces.offset, pieces.offset);
        if let Event::Data(data) = &ahead {
            pieces.expected = pieces.expected.saturating_add(i64::try_from(data.len()).unwrap_or(i64::MAX));
        }
        if !pieces.checked {
            pieces.offset = 0;
        }
        pieces.ahead = Some(ahead);
        Ok(pieces)
    }

    /// Returns the offset at which the write begins.
    pub(super) fn offset(&self) -> u64 {
        u64::try_from(self.first_offset).present("the offset of an accepted write is negative")
    }

    /// Number of bytes received so far.
    pub(super) fn received(&self) -> i64 {
        self.expected - self.first_offset
    }

    async fn part(&mut self) -> Result<Option<Part>, Status> {
        loop {
            if let Some(part) = self.parser.next()? {
                return Ok(Some(part));
            }
            match wire::frame(&mut self.body, self.pause_max).await? {
                Some(data) => self.parser.feed(data),
                None if self.parser.is_between_messages() => return Ok(None),
                None => return Err(Status::cancelled("the stream was interrupted")),
            }
        }
    }

    /// Returns the next event.
    pub(super) async fn next(&mut self) -> Result<Event, Status> {
        if let Some(ahead) = self.ahead.take() {
            return Ok(ahead);
        }
        loop {
            match self.part().await? {
                Some(Part::Name(name)) if name.is_empty() || name == self.name => {}
                Some(Part::Name(_)) => {
                    return Err(Status::invalid_argument("a later request has a different resource_name"));
                }
                Some(Part::Offset(offset)) => self.offset = offset,
                Some(Part::Finish) => self.finish = true,
                Some(Part::Data(data)) => {
                    self.check()?;
                    self.expected =
                        self.expected.saturating_add(i64::try_from(data.len()).unwrap_or(i64::MAX));
                    return Ok(Event::Data(data));
                }
                Some(Part::End) => {
                    self.check()?;
                    (self.offset, self.checked) = (0, false);
                    if self.finish {
                        return Ok(Event::Finish);
                    }
                }
                None => return Ok(Event::Closed),
            }
        }
    }

    fn check(&mut self) -> Result<(), Status> {
        if !self.checked && self.offset != self.expected {
            return Err(Status::invalid_argument(format!(
                "invalid write_offset {}: expected {}",
                self.offset, self.expected
            )));
        }
        self.checked = true;
        Ok(())
    }

    /// Waits briefly for the end of the stream: an earlier answer would reset the stream.
    pub(super) async fn await_end(&mut self) {
        // The write is complete, whether the stream ends in time or not.
        let _ = tokio::time::timeout(SETTLE, self.part()).await;
    }

    /// Reads the rest of the stream, if it is short.
    pub(super) async fn drain(&mut self, size: u64) {
        let mut left = size.min(DRAIN_BYTES + 1);
        while left <= DRAIN_BYTES {
            match self.part().await {
                Ok(Some(Part::Data(data))) => left += data.len() as u64,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }
}
