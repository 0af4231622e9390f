//! Reads the pieces of a log that the bus, the archive and the store have.

use bus::{Bus, ConsoleChunk, EventKind, EventSubject, invocation_of, stream};
use bytes::BytesMut;
use console_log::{Piece, Run};
use model::{BuildKey, Sequence};

use super::{LogSource, PieceContent, PiecePlace, RunLog, run_logs::PIECE_MESSAGES_MAX};
use crate::{Blobs, ClientError, Frame, FrameContent};

/// The pieces of the log of one run.
#[derive(Debug)]
pub struct StoredSource<'a, B> {
    pub bus: &'a Bus,
    pub key: &'a BuildKey,
    pub run: &'a RunLog,
    pub blobs: &'a mut B,
}

impl<B: Blobs> LogSource for StoredSource<'_, B> {
    type Place = PiecePlace;

    async fn read(&mut self, piece: &Piece<PiecePlace>) -> Result<PieceContent, ClientError> {
        match &piece.place {
            PiecePlace::Chunks { first, last, .. } => {
                let content = self.chunks(*first, *last).await?;
                let whole =
                    matches!(&content, PieceContent::Read { data, .. } if data.len() as u64 == piece.bytes);
                Ok(if whole { content } else { PieceContent::Lost("the bus has it no more".to_owned()) })
            }
            PiecePlace::Archived { stream, data } => {
                let runs = vec![Run { stream: *stream, bytes: data.len() }];
                Ok(PieceContent::Read { data: data.clone(), runs })
            }
            PiecePlace::Frame(reference) => {
                let mut frame = Frame::unread(*reference);
                frame.read(self.blobs).await;
                Ok(match frame.content {
                    FrameContent::Read(raw) => PieceContent::Read { data: raw.data.into(), runs: raw.runs },
                    FrameContent::Lost(why) => PieceContent::Lost(why),
                    FrameContent::Unread => PieceContent::Lost("it was not read".to_owned()),
                })
            }
            PiecePlace::Nowhere(why) => Ok(PieceContent::Lost((*why).to_owned())),
        }
    }
}

impl<B> StoredSource<'_, B> {
    async fn chunks(&mut self, first: Sequence, last: Sequence) -> Result<PieceContent, ClientError> {
        let subject = EventSubject { key: self.key.clone(), kind: EventKind::Console }.to_string();
        let (mut data, mut runs) = (BytesMut::new(), Vec::new());
        let mut read_to = Sequence(first.0.saturating_sub(1));
        while read_to < last {
            let from = Sequence(read_to.0 + 1);
            let tail = self.bus.stream(stream::EVENTS).read_from(&subject, from, PIECE_MESSAGES_MAX).await?;
            let Some(end) = tail.events.last() else { break };
            read_to = end.sequence;
            for stored in tail.events.iter().filter(|stored| stored.sequence <= last) {
                let chunk = ConsoleChunk::read(stored.headers.as_ref(), &stored.payload);
                let of_run = |chunk: &ConsoleChunk| {
                    chunk.attempt == self.run.attempt
                        && invocation_of(stored.headers.as_ref()) == self.run.invocation
                };
                if let Some(chunk) = chunk.filter(of_run) {
                    runs.push(Run { stream: chunk.stream, bytes: chunk.data.len() });
                    data.extend_from_slice(&chunk.data);
                }
            }
        }
        Ok(PieceContent::Read { data: data.freeze(), runs })
    }
}
