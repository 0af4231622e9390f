//! Console output of expired builds, from the archive.

use std::collections::VecDeque;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bus::{ArchiveCall, ConsoleChunk, ConsoleFrame, EventKind, EventSubject, Message as _, stream};
use bytes::Bytes;
use model::{
    Attempt, BuildView, ConsoleContent, ConsoleOf, ConsoleOfBuild, ConsolePiece, ConsoleReply,
    ConsoleRequest, ErrorCode, State,
};

use crate::{Client, ClientError, Frame, WatchBody, WatchEvent};

/// The console output of a build or of one of its runs, read page by page. Its events are those that the bus had.
#[derive(Debug)]
pub struct ArchivedConsole {
    client: Client,
    /// The next page; none after the last one.
    request: Option<ConsoleRequest>,
    pieces: VecDeque<ConsolePiece>,
}

impl Client {
    /// The console output of a build, or of one `attempt`, from the archive, if the bus has not all of it any more.
    pub async fn archived_console(
        &self,
        build: &BuildView,
        attempt: Option<Attempt>,
    ) -> Result<Option<ArchivedConsole>, ClientError> {
        if self.has_console(build).await? {
            return Ok(None);
        }
        let key = build.record.build.key();
        let of = ConsoleOf::Build(ConsoleOfBuild { group: key.group, id: key.id, attempt });
        let request = Some(ConsoleRequest { of, after: None });
        let mut console = ArchivedConsole { client: self.clone(), request, pieces: VecDeque::new() };
        match console.read().await {
            Ok(()) => Ok(Some(console)),
            // No archive, or one that began later: what the bus still has is all.
            Err(ClientError::Unreachable { .. }) => Ok(None),
            Err(ClientError::Api(error)) if error.error == ErrorCode::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A page of console output, from the archive.
    pub async fn console(&self, request: &ConsoleRequest) -> Result<ConsoleReply, ClientError> {
        self.ask_archive(ArchiveCall::Console, request.to_json()).await
    }

    /// Whether the bus has all console output of a build. Output that is still written is only there.
    async fn has_console(&self, build: &BuildView) -> Result<bool, ClientError> {
        // A user of a tenant may not ask the archive.
        if build.state != State::Finished || !self.bus().reads(stream::EVENTS).await {
            return Ok(true);
        }
        let events = self.bus().stream(stream::EVENTS);
        let (first, _) = events.positions().await?;
        let begin = build.record.queue.first_sequence.unwrap_or(build.sequence);
        let subject = EventSubject { key: build.record.build.key(), kind: EventKind::Lifecycle }.to_string();
        // A stream that was created again has other events at these positions.
        Ok(first <= begin && events.last(&subject).await?.is_some())
    }
}

impl ArchivedConsole {
    /// The next event with output; none after the last one.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>, ClientError> {
        while self.pieces.is_empty() && self.request.is_some() {
            self.read().await?;
        }
        self.pieces.pop_front().map(event).transpose()
    }

    async fn read(&mut self) -> Result<(), ClientError> {
        let Some(request) = &mut self.request else { return Ok(()) };
        let reply = self.client.console(request).await?;
        match reply.next {
            Some(after) => request.after = Some(after),
            None => self.request = None,
        }
        self.pieces.extend(reply.pieces);
        Ok(())
    }
}

/// The event whose message was archived as `piece`.
fn event(piece: ConsolePiece) -> Result<WatchEvent, ClientError> {
    let ConsolePiece { position, attempt, invocation, offset, bytes, lines, content, .. } = piece;
    let chunk =
        |stream, dropped, data| WatchBody::Console(ConsoleChunk { stream, attempt, offset, dropped, data });
    let body = match content {
        ConsoleContent::Output { stream, base64 } => {
            let unreadable = |error| {
                let message = format!("the archive's output at position {position} is unreadable: {error}");
                ClientError::api(ErrorCode::Unavailable, message)
            };
            chunk(stream, None, STANDARD.decode(base64).map(Bytes::from).map_err(unreadable)?)
        }
        ConsoleContent::Dropped { stream, bytes } => chunk(stream, Some(bytes), Bytes::new()),
        ConsoleContent::Frame { blob } => {
            let reference = ConsoleFrame { attempt, blob, offset, bytes, lines };
            WatchBody::Frame(Frame::unread(reference))
        }
    };
    Ok(WatchEvent { position, invocation, body })
}
