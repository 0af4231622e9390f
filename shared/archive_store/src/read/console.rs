//! Console output of runs, in pages.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use model::{Attempt, ConsoleContent, ConsoleOf, ConsolePiece, ConsoleReply, ConsoleRequest, OutputStream};

use super::{
    builds::{parse, sequence},
    query::Query,
};
use crate::{
    Store, StoreError,
    plain::{natural, whole},
    sql::{AnswerRow, Connection},
};

/// Maximum size in bytes of the output in a page.
const PAGE_BYTES_MAX: i64 = 512 << 10;
/// The same as a number of bytes of a piece: a larger message has several.
const PART_BYTES_MAX: usize = 512 << 10;
/// What a position is multiplied by in the numbers of its pieces: a message of 64 MiB, the
/// maximum of nats-server, has 128.
const PARTS: u64 = 256;
/// Maximum number of messages in a page.
const PIECES_MAX: i64 = 500;
const READING: &str = "reading console output";

/// The runs of a build that a request means.
struct Runs {
    place: i64,
    attempt: Option<i64>,
}

impl Store {
    /// A page of console output; none if the archive does not have the build.
    pub async fn console(&self, request: &ConsoleRequest) -> Result<Option<ConsoleReply>, StoreError> {
        let mut connection = self.reader().await?;
        let Some(runs) = runs(&request.of, &mut connection).await? else { return Ok(None) };
        let rows = page(&runs, request.after).fetch(&mut connection, READING).await?;
        let mut found = Vec::new();
        for row in &rows {
            let parts = pieces(row)?.into_iter().filter(|part| Some(part.number) > request.after);
            found.extend(parts);
        }
        let (pieces, cut) = fitting(found);
        let known = rows.first().map(|row| row.whole(12)).transpose();
        let known = natural(known.map_err(StoreError::while_(READING))?.unwrap_or_default());
        // As many as a page can have: there may be more.
        let more = cut || known > rows.len() as u64 || known >= natural(PIECES_MAX);
        let next = pieces.last().filter(|_| more).map(|last| last.number);
        Ok(Some(ConsoleReply { pieces, next }))
    }
}

/// The first pieces that fit into a page, at least one, and whether there are others.
fn fitting(found: Vec<ConsolePiece>) -> (Vec<ConsolePiece>, bool) {
    let (mut pieces, mut room) = (Vec::new(), natural(PAGE_BYTES_MAX));
    for piece in found {
        let size = if let ConsoleContent::Output { .. } = piece.content { piece.bytes } else { 0 };
        if size > room && !pieces.is_empty() {
            return (pieces, true);
        }
        room = room.saturating_sub(size);
        pieces.push(piece);
    }
    (pieces, false)
}

async fn runs(of: &ConsoleOf, connection: &mut Connection) -> Result<Option<Runs>, StoreError> {
    let (query, attempt) = match of {
        ConsoleOf::Build(build) => {
            let mut query = Query::new("SELECT place, NULL FROM builds WHERE build_id = ");
            query.bind(build.id.to_string()).and("build_group =", build.group.as_str());
            (query, build.attempt.map(|attempt| i64::from(attempt.0)))
        }
        ConsoleOf::Invocation(id) => {
            let mut query = Query::new("SELECT place, attempt FROM invocations WHERE invocation_id = ");
            query.bind(id.to_string());
            (query, None)
        }
    };
    let rows = query.fetch(connection, READING).await?;
    let read = |row: &AnswerRow| {
        let attempt = match of {
            ConsoleOf::Build(_) => attempt,
            ConsoleOf::Invocation(_) => Some(row.whole(1)?),
        };
        Ok(Runs { place: row.whole(0)?, attempt })
    };
    rows.first().map(read).transpose().map_err(StoreError::while_(READING))
}

/// The messages with pieces after number `after`, as many as fit into a page and at least one. Sizes are
/// added up without reading content.
fn page(runs: &Runs, after: Option<u64>) -> Query {
    let mut query = Query::new(
        "SELECT p.position, p.attempt, i.invocation_id, p.start_offset, p.bytes, p.lines, p.output, p.dropped_bytes, \
         p.blob, p.content, p.packed, (SELECT base FROM cursors WHERE stream = 'FOREBAY_EVENTS'), s.known \
         FROM (SELECT position, COUNT(*) OVER () AS known, ROW_NUMBER() OVER (ORDER BY position) AS number, \
         CAST(SUM(CASE WHEN blob IS NULL THEN bytes ELSE 0 END) OVER (ORDER BY position) AS BIGINT) AS so_far \
         FROM (SELECT position, blob, bytes FROM console_pieces WHERE place = ",
    );
    // The message of the last piece may have more pieces.
    let first = after.map_or(0, |after| after / PARTS + u64::from(after % PARTS == PARTS - 1));
    query.bind(runs.place).and("position >=", whole(first)).and_if("attempt =", runs.attempt);
    query.add(" ORDER BY position LIMIT ").bind(PIECES_MAX).add(") f) s ");
    query.add("JOIN console_pieces p ON p.position = s.position ");
    query.add("LEFT JOIN invocations i ON i.place = p.place AND i.attempt = p.attempt ");
    query.add("WHERE s.number = 1 OR s.so_far <= ").bind(PAGE_BYTES_MAX).add(" ORDER BY p.position");
    query
}

/// The pieces of a message: several if its output is too large for a page.
fn pieces(row: &AnswerRow) -> Result<Vec<ConsolePiece>, StoreError> {
    let failed = |error| StoreError::while_("reading a piece of console output")(error);
    let whole = |column| row.whole(column).map_err(failed);
    let position = whole(0)?;
    let base = row.integer(11).map_err(failed)?.unwrap_or_default();
    let invocation = row.text(2).map_err(failed)?.map(|id| parse(&id)).transpose()?;
    let (content, large) = match content(row)? {
        Content::Output(stream, data) if data.len() > PART_BYTES_MAX => {
            (output(stream, &[]), Some((stream, data)))
        }
        Content::Output(stream, data) => (output(stream, &data), None),
        Content::Other(content) => (content, None),
    };
    let message = ConsolePiece {
        // The last piece of a message has the last of its numbers.
        number: natural(position).saturating_mul(PARTS).saturating_add(PARTS - 1),
        position: sequence(position, base),
        attempt: Attempt(u32::try_from(whole(1)?).unwrap_or(u32::MAX)),
        invocation,
        offset: natural(whole(3)?),
        bytes: natural(whole(4)?),
        lines: natural(whole(5)?),
        content,
    };
    Ok(match large {
        Some((stream, data)) => parts(&message, stream, &data),
        None => vec![message],
    })
}

/// The output of a large message in pieces.
fn parts(message: &ConsolePiece, stream: OutputStream, data: &[u8]) -> Vec<ConsolePiece> {
    let count = data.len().div_ceil(PART_BYTES_MAX);
    let part = |(index, data): (usize, &[u8])| ConsolePiece {
        number: if index + 1 == count {
            message.number
        } else {
            message.number.saturating_sub(PARTS - 1).saturating_add(index as u64)
        },
        offset: message.offset.saturating_add((index * PART_BYTES_MAX) as u64),
        bytes: data.len() as u64,
        lines: data.iter().map(|byte| u64::from(*byte == b'\n')).sum(),
        content: output(stream, data),
        ..message.clone()
    };
    data.chunks(PART_BYTES_MAX).enumerate().map(part).collect()
}

fn output(stream: OutputStream, data: &[u8]) -> ConsoleContent {
    ConsoleContent::Output { stream, base64: STANDARD.encode(data) }
}

/// What a message has.
enum Content {
    Output(OutputStream, Vec<u8>),
    Other(ConsoleContent),
}

fn content(row: &AnswerRow) -> Result<Content, StoreError> {
    let failed = |error| StoreError::while_("reading a piece of console output")(error);
    if let Some(blob) = row.text(8).map_err(failed)? {
        return Ok(Content::Other(ConsoleContent::Frame { blob: parse(&blob)? }));
    }
    let stream: OutputStream = parse(&row.word(6).map_err(failed)?)?;
    if let Some(bytes) = row.integer(7).map_err(failed)? {
        return Ok(Content::Other(ConsoleContent::Dropped { stream, bytes: natural(bytes) }));
    }
    let data = match (row.bytes(9).map_err(failed)?, row.bytes(10).map_err(failed)?) {
        (_, Some(packed)) => zstd::bulk::decompress(
            &packed,
            usize::try_from(row.whole(4).map_err(failed)?).unwrap_or_default(),
        )
        .map_err(|error| StoreError::Record(error.into()))?,
        (content, None) => content.unwrap_or_default(),
    };
    Ok(Content::Output(stream, data))
}
