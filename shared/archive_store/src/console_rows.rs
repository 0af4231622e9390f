//! The rows that console output of a build gives.

use bus::{ConsoleChunk, ConsoleFrame, Stored};
use model::{BuildKey, hex};

use crate::{
    plain::whole,
    rows::{ConsoleRow, PieceRow},
    unreadable::Unreadable,
};

/// Output from this size in bytes on is compressed: less would gain little.
const PACK_MIN: usize = 512;
const PACK_LEVEL: i32 = 1;

/// Where a console message is, and how far the output reaches with it; none for a frame in the store.
pub(crate) fn extent(
    key: &BuildKey,
    stored: &Stored,
    position: i64,
) -> Result<Option<ConsoleRow>, Unreadable> {
    if ConsoleFrame::read(stored.headers.as_ref()).is_some() {
        return Ok(None);
    }
    let chunk = chunk(stored)?;
    Ok(Some(ConsoleRow {
        build_group: key.group.to_string(),
        build_id: key.id.to_string(),
        attempt: i64::from(chunk.attempt.0),
        output: chunk.stream.as_str(),
        first_position: position,
        last_position: position,
        bytes: whole(chunk.offset.saturating_add(chunk.data.len() as u64)),
        dropped_bytes: whole(chunk.dropped.unwrap_or_default()),
    }))
}

/// The output of a console message.
pub(crate) fn piece(key: &BuildKey, stored: &Stored, position: i64) -> Result<PieceRow, Unreadable> {
    if let Some(frame) = ConsoleFrame::read(stored.headers.as_ref()) {
        return Ok(PieceRow {
            start_offset: whole(frame.offset),
            bytes: whole(frame.bytes),
            lines: whole(frame.lines),
            blob: Some(frame.blob.to_string()),
            ..PieceRow::new(key, frame.attempt, position)
        });
    }
    let chunk = chunk(stored)?;
    let output = PieceRow {
        output: Some(chunk.stream.as_str()),
        start_offset: whole(chunk.offset),
        ..PieceRow::new(key, chunk.attempt, position)
    };
    if let Some(dropped) = chunk.dropped {
        return Ok(PieceRow { dropped_bytes: Some(whole(dropped)), ..output });
    }
    let packed = pack(&chunk.data);
    Ok(PieceRow {
        bytes: whole(chunk.data.len() as u64),
        lines: chunk.data.iter().map(|byte| i64::from(*byte == b'\n')).sum(),
        content: packed.is_none().then(|| hex(&chunk.data)),
        packed: packed.map(|packed| hex(&packed)),
        ..output
    })
}

fn chunk(stored: &Stored) -> Result<ConsoleChunk, Unreadable> {
    ConsoleChunk::read(stored.headers.as_ref(), &stored.payload).ok_or(Unreadable::Headers)
}

/// The output compressed; none if that is not shorter.
fn pack(data: &[u8]) -> Option<Vec<u8>> {
    let packed = (data.len() >= PACK_MIN).then(|| zstd::bulk::compress(data, PACK_LEVEL).ok()).flatten()?;
    (packed.len() < data.len()).then_some(packed)
}

impl PieceRow {
    fn new(key: &BuildKey, attempt: model::Attempt, position: i64) -> Self {
        Self {
            build_group: key.group.to_string(),
            build_id: key.id.to_string(),
            position,
            attempt: i64::from(attempt.0),
            output: None,
            start_offset: 0,
            bytes: 0,
            lines: 0,
            dropped_bytes: None,
            blob: None,
            content: None,
            packed: None,
        }
    }
}

impl ConsoleRow {
    /// Adds a later message of the same output.
    pub(crate) fn merge(&mut self, later: &Self) {
        self.first_position = self.first_position.min(later.first_position);
        self.last_position = self.last_position.max(later.last_position);
        self.bytes = self.bytes.max(later.bytes);
        self.dropped_bytes = self.dropped_bytes.max(later.dropped_bytes);
    }
}
