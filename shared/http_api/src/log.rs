//! A build's console output: as plain bytes, or a window of its lines.

use axum::{
    Json,
    body::Body,
    extract::State as FromState,
    http::header,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use cas::CasError;
use client::{
    ClientError, LINES_DEFAULT, LogRange, LogSource as _, OpenLog, PieceContent, RunChoice, StoredSource,
};
use futures::{
    Stream, StreamExt as _, TryStreamExt as _,
    stream::{self as streams, BoxStream},
};
use model::{Attempt, BuildView};

use crate::{
    failure::Failure,
    frames::StoreBlobs,
    input::{PathParameters, QueryParameters},
    state::Api,
};

type Part = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Handles `GET /v1/builds/{group}/{id}/log`: sends the console output of a run so far, stdout and stderr in order of
/// arrival; with `line`, `lines` or `tail`, a window of its lines as JSON. Expired output comes from the archive.
pub(crate) async fn show(
    FromState(api): FromState<Api>,
    names: PathParameters,
    query: QueryParameters,
) -> Result<Response, Failure> {
    let (key, choice, range) = (names.key()?, choice_in(&query)?, range_in(&query)?);
    let log = api.open_log(&key, choice).await?;
    match range {
        Some(range) => {
            let mut blobs = StoreBlobs(api.cas.clone());
            Ok(Json(log.window(&api.client, &mut blobs, range).await?).into_response())
        }
        None => whole(api, log, choice).await,
    }
}

fn choice_in(query: &QueryParameters) -> Result<RunChoice, Failure> {
    match (query.number("attempt")?, query.parsed("invocation")?) {
        (None, None) => Ok(RunChoice::Last),
        (Some(attempt), None) => Ok(RunChoice::Attempt(Attempt(attempt))),
        (None, Some(invocation)) => Ok(RunChoice::Invocation(invocation)),
        (Some(_), Some(_)) => {
            Err(Failure::invalid("attempt and invocation exclude each other: give one of them"))
        }
    }
}

fn range_in(query: &QueryParameters) -> Result<Option<LogRange>, Failure> {
    match (query.number("line")?, query.number("lines")?, query.number("tail")?) {
        (None, None, None) => Ok(None),
        (line, lines, None) => {
            let lines = lines.unwrap_or(LINES_DEFAULT);
            Ok(Some(LogRange::From { line: line.unwrap_or(1), lines }))
        }
        (None, None, Some(lines)) => Ok(Some(LogRange::Tail { lines })),
        (_, _, Some(_)) => Err(Failure::invalid("tail excludes line and lines: give either")),
    }
}

/// Sends the whole log as plain bytes.
async fn whole(api: Api, log: OpenLog, choice: RunChoice) -> Result<Response, Failure> {
    let overflow = if choice == RunChoice::Last { overflow(&api, &log.build).await? } else { None };
    let pieces = Pieces { api, log, has_overflow: overflow.is_some(), next: 0 };
    let parts = pieces.parts().chain(overflow.unwrap_or_else(|| streams::empty().boxed()));
    let head =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((head, Body::from_stream(parts)).into_response())
}

/// The pieces of a log that are still to be sent.
struct Pieces {
    api: Api,
    log: OpenLog,
    /// Whether the output that is not on the bus follows from a file.
    has_overflow: bool,
    next: usize,
}

impl Pieces {
    async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let Some(run) = self.log.run() else { return Ok(None) };
        let Some(piece) = run.index.pieces().get(self.next) else { return Ok(None) };
        self.next += 1;
        let mut blobs = StoreBlobs(self.api.cas.clone());
        let mut source =
            StoredSource { bus: self.api.client.bus(), key: &self.log.key, run, blobs: &mut blobs };
        Ok(Some(match source.read(piece).await? {
            PieceContent::Read { data, .. } => data,
            PieceContent::Lost(_) if self.has_overflow => Bytes::new(),
            PieceContent::Lost(_) if piece.bytes == 0 => {
                Bytes::from_static(b"\nforebay: output is omitted from here on\n")
            }
            PieceContent::Lost(why) => {
                format!("\nforebay: {} bytes of output cannot be read: {why}\n", piece.bytes).into()
            }
        }))
    }

    fn parts(self) -> impl Stream<Item = Part> {
        streams::try_unfold(self, async |mut pieces| Ok(pieces.next().await?.map(|data| (data, pieces))))
    }
}

/// The rest of the output of a build of an earlier version.
async fn overflow(api: &Api, build: &BuildView) -> Result<Option<BoxStream<'static, Part>>, Failure> {
    let overflow = build.record.result().and_then(|result| result.log.overflow.as_ref());
    let Some(file) = overflow else { return Ok(None) };
    let digest = file.blob();
    let parts = api.cas.read(&digest, 0, None).await?.ok_or(CasError::Missing { digest })?;
    Ok(Some(parts.map_err(Into::into).boxed()))
}
