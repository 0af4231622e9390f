//! Log streams: written piece by piece, readable while they grow, stored on the bus.

use std::time::Duration;

use bus::{LogEnd, LogHead, LogPiece, Signals};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use model::{DigestFunction, Sequence};
use reapi::logstream::{CreateLogStreamRequest, LogStream, log_stream_service_server::LogStreamService};
use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::{Core, faults, live::Output};

/// Maximum size of one log message, in bytes.
const PIECE: usize = 256 << 10;
/// Interval at which a reader polls, in case a notification was lost.
const REPAIR: Duration = Duration::from_secs(5);

/// Implementation of the `build.bazel.remote.logstream.v1.LogStreamService` service.
pub(crate) struct LogStreams {
    core: Core,
}

impl LogStreams {
    pub(crate) fn new(core: Core) -> Self {
        Self { core }
    }
}

#[tonic::async_trait]
impl LogStreamService for LogStreams {
    async fn create_log_stream(
        &self,
        request: Request<CreateLogStreamRequest>,
    ) -> Result<Response<LogStream>, Status> {
        let parent = request.into_inner().parent;
        reapi::instance::check(&parent)?;
        let refused =
            |refusal: policy::InstanceRefusal| Status::invalid_argument(format!("parent: {refusal}"));
        self.core.config.instances.rule(&parent).map_err(refused)?;
        let (id, token) = (Uuid::new_v4(), Uuid::new_v4().simple().to_string());
        let head = LogHead { parent: parent.clone(), token: DigestFunction::Sha256.digest(token.as_bytes()) };
        self.core.bus.log_stream(id).create(&head).await.map_err(faults::bus)?;
        let slash = if parent.is_empty() { "" } else { "/" };
        let name = format!("{parent}{slash}logstreams/{}", id.simple());
        Ok(Response::new(LogStream { write_resource_name: format!("{name}/{token}"), name }))
    }
}

/// A writer of a log stream.
pub(crate) struct LogWriter {
    core: Core,
    id: Uuid,
    end: LogEnd,
    pending: BytesMut,
}

impl LogWriter {
    /// Opens the log stream for appending.
    pub(crate) async fn open(core: &Core, parent: &str, id: &str, token: &str) -> Result<Self, Status> {
        let (id, head) = head(core, parent, id).await?;
        if head.token != DigestFunction::Sha256.digest(token.as_bytes()) {
            return Err(Status::permission_denied(format!(
                "invalid write token for log stream {}",
                id.simple()
            )));
        }
        let end = core.bus.log_stream(id).end().await.map_err(faults::bus)?;
        let end = end.ok_or_else(|| unknown(&id.simple().to_string()))?;
        Ok(Self { core: core.clone(), id, end, pending: BytesMut::new() })
    }

    /// Number of bytes written so far, including buffered ones.
    pub(crate) fn length(&self) -> u64 {
        self.end.length + self.pending.len() as u64
    }

    /// Whether the stream is complete, so that nothing can be appended.
    pub(crate) fn is_complete(&self) -> bool {
        self.end.complete
    }

    /// Appends `data` to the buffer, and commits the buffer when it is full.
    pub(crate) async fn write(&mut self, data: &[u8]) -> Result<(), Status> {
        if self.end.complete && !data.is_empty() {
            return Err(Status::failed_precondition(format!("log stream {} is complete", self.id.simple())));
        }
        for part in data.chunks(PIECE) {
            if self.pending.len() + part.len() > PIECE {
                self.flush(false).await?;
            }
            self.pending.extend_from_slice(part);
        }
        Ok(())
    }

    /// Commits the buffered data; with `last`, also completes the stream.
    pub(crate) async fn flush(&mut self, last: bool) -> Result<(), Status> {
        if self.pending.is_empty() && (!last || self.end.complete) {
            return Ok(());
        }
        let data = self.pending.split().freeze();
        let appended = self.core.bus.log_stream(self.id).append(&self.end, data, last).await;
        match appended.map_err(faults::bus)? {
            Ok(end) => {
                self.end = end;
                Ok(())
            }
            Err(Some(now)) => {
                let text = format!("another client writes this log stream: {} bytes committed", now.length);
                Err(Status::aborted(text))
            }
            Err(None) => Err(unknown(&self.id.simple().to_string())),
        }
    }
}

/// Follows a log stream from `offset` until it is complete.
pub(crate) async fn follow(core: &Core, parent: &str, id: &str, offset: u64) -> Result<Output, Status> {
    let (id, _) = head(core, parent, id).await?;
    let end = core.bus.log_stream(id).end().await.map_err(faults::bus)?;
    if end.is_some_and(|end| end.complete && offset > end.length) {
        return Err(Status::out_of_range(format!("offset {offset} is beyond the end of the log stream")));
    }
    let heard = core.bus.log_stream(id).signals().await.map_err(faults::bus)?;
    let following = Following {
        core: core.clone(),
        id,
        heard,
        next: Sequence(1),
        offset,
        ready: Vec::new(),
        ended: false,
    };
    let pieces = futures::stream::unfold(following, async |mut following| {
        let piece = following.next().await?;
        Some((piece, following))
    });
    Ok(pieces.boxed())
}

struct Following {
    core: Core,
    id: Uuid,
    heard: Signals,
    /// Sequence number of the next message to read.
    next: Sequence,
    /// Offset of the next byte.
    offset: u64,
    /// Pieces that were read but not yet returned, last first.
    ready: Vec<LogPiece>,
    ended: bool,
}

impl Following {
    async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        loop {
            while let Some(piece) = self.ready.pop() {
                self.ended |= piece.last;
                if let Some(data) = behind(&piece, self.offset) {
                    self.offset += data.len() as u64;
                    return Some(Ok(data));
                }
            }
            if self.ended {
                return None;
            }
            match self.core.bus.log_stream(self.id).pieces(self.next).await {
                Err(error) => {
                    self.ended = true;
                    return Some(Err(faults::bus(error)));
                }
                Ok(pieces) if pieces.is_empty() => {
                    tokio::select! {
                        Some(()) = self.heard.next() => {}
                        () = tokio::time::sleep(REPAIR) => {}
                        () = self.core.stop.cancelled() => {
                            self.ended = true;
                            return Some(Err(Status::unavailable("this gateway is stopping; resume at another")));
                        }
                    }
                }
                Ok(mut pieces) => {
                    let last = pieces.last().map_or(self.next, |piece| Sequence(piece.sequence.0 + 1));
                    self.next = last;
                    pieces.reverse();
                    self.ready = pieces;
                }
            }
        }
    }
}

/// The bytes of a piece at or after `offset` of the log, if there are any.
fn behind(piece: &LogPiece, offset: u64) -> Option<Bytes> {
    let skip = usize::try_from(offset.saturating_sub(piece.offset)).ok()?;
    (skip < piece.data.len()).then(|| piece.data.slice(skip..))
}

async fn head(core: &Core, parent: &str, id: &str) -> Result<(Uuid, LogHead), Status> {
    let uuid = Uuid::try_parse(id).map_err(|_| unknown(id))?;
    let head = core.bus.log_stream(uuid).head().await.map_err(faults::bus)?;
    let head = head.filter(|head| head.parent == parent).ok_or_else(|| unknown(id))?;
    Ok((uuid, head))
}

fn unknown(id: &str) -> Status {
    Status::not_found(format!("log stream {:?} not found", id.chars().take(80).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_gets_what_is_behind_its_offset() {
        let piece =
            LogPiece { sequence: Sequence(1), offset: 10, data: Bytes::from_static(b"abcd"), last: false };
        assert_eq!(behind(&piece, 0).unwrap(), "abcd");
        assert_eq!(behind(&piece, 12).unwrap(), "cd");
        assert_eq!(behind(&piece, 14), None);
    }
}
