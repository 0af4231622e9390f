//! A build's console output as plain bytes.

use std::time::Duration;

use axum::{
    body::Body,
    extract::State as FromState,
    http::header,
    response::{IntoResponse, Response},
};
use bus::{EventKind, EventSubject, stream};
use bytes::Bytes;
use cas::CasError;
use client::{ArchivedConsole, ClientError, FrameContent, Watch, WatchBody, WatchEvent};
use futures::{
    Stream, StreamExt as _, TryStreamExt as _,
    stream::{self as streams, BoxStream},
};
use model::{Attempt, BuildView, Sequence, State};

use crate::{failure::Failure, frames, gateway::Gateway, input::PathParameters};

type Part = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// How long to wait for the next stored chunk. Stored chunks arrive at once; one that does not was superseded
/// by a later run.
const NEXT_WITHIN: Duration = Duration::from_secs(3);

/// Handles `GET /v1/builds/{group}/{id}/log`: sends the console output of the last run so far, stdout and stderr in
/// order of arrival: the part on the bus, then frames of the store; of builds of earlier versions the overflow file. What
/// the bus has no more comes from the archive.
pub(crate) async fn show(
    FromState(gateway): FromState<Gateway>,
    names: PathParameters,
) -> Result<Response, Failure> {
    let key = names.key()?;
    let build = gateway.client.get(&key).await?;
    let subject = EventSubject { key: key.clone(), kind: EventKind::Console }.to_string();
    let last = gateway.client.bus().stream(stream::EVENTS).last(&subject).await?;
    let run = run_of(&build);
    let (source, until) = match gateway.client.archived_console(&build, Some(run)).await? {
        Some(console) => (Source::Archive(console), Sequence(u64::MAX)),
        None => {
            let watch = gateway.client.watch(&key, Sequence(0), &[EventKind::Console]).giving_up();
            (Source::Bus(watch), last.map_or(Sequence(0), |stored| stored.sequence))
        }
    };
    let overflow = overflow(&gateway, &build).await?;
    let chunks = StoredChunks {
        gateway: gateway.clone(),
        source,
        run,
        has_overflow: overflow.is_some(),
        position: Sequence(0),
        until,
    };
    let parts = chunks.parts().chain(overflow.unwrap_or_else(|| streams::empty().boxed()));
    let head =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((head, Body::from_stream(parts)).into_response())
}

/// The last run that wrote output: the previous attempt while the build is requeued.
fn run_of(build: &BuildView) -> Attempt {
    let attempt = build.record.attempt;
    if build.state == State::Enqueued { Attempt(attempt.0.saturating_sub(1)) } else { attempt }
}

/// Where the output is read.
enum Source {
    Bus(Watch),
    Archive(ArchivedConsole),
}

impl Source {
    async fn next(&mut self) -> Result<Option<WatchEvent>, ClientError> {
        match self {
            Self::Bus(watch) => tokio::time::timeout(NEXT_WITHIN, watch.next()).await.unwrap_or(Ok(None)),
            Self::Archive(console) => console.next().await,
        }
    }
}

/// The chunks of one run up to a position.
struct StoredChunks {
    gateway: Gateway,
    source: Source,
    run: Attempt,
    /// Whether the output that is not on the bus follows from a file.
    has_overflow: bool,
    position: Sequence,
    until: Sequence,
}

impl StoredChunks {
    async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        while self.position < self.until {
            let Some(event) = self.source.next().await? else { return Ok(None) };
            self.position = event.position;
            if let Some(data) = self.output_of(event.body).await {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// The output in an event, or a line about output that is missing.
    async fn output_of(&self, body: WatchBody) -> Option<Bytes> {
        match body {
            WatchBody::Console(chunk) if chunk.attempt == self.run => {
                if chunk.dropped.is_some() && !self.has_overflow {
                    return Some(Bytes::from_static(b"\nforebay: output is omitted from here on\n"));
                }
                (!chunk.data.is_empty()).then_some(chunk.data)
            }
            WatchBody::Frame(mut frame) if frame.reference.attempt == self.run => {
                frames::fill(&self.gateway, &mut frame).await;
                let lost = frame.lost_line().map(|line| Bytes::from(format!("\nforebay: {line}\n")));
                let FrameContent::Read(raw) = frame.content else { return lost };
                Some(raw.data.into())
            }
            WatchBody::Console(_)
            | WatchBody::Frame(_)
            | WatchBody::Lifecycle(_)
            | WatchBody::Tool(_)
            | WatchBody::Bazel(_) => None,
        }
    }

    fn parts(self) -> impl Stream<Item = Part> {
        streams::try_unfold(self, async |mut chunks| Ok(chunks.next().await?.map(|data| (data, chunks))))
    }
}

/// The rest of the output of a build of an earlier version.
async fn overflow(gateway: &Gateway, build: &BuildView) -> Result<Option<BoxStream<'static, Part>>, Failure> {
    let overflow = build.record.result().and_then(|result| result.log.overflow.as_ref());
    let Some(file) = overflow else { return Ok(None) };
    let digest = file.blob();
    let parts = gateway.cas.read(&digest, 0, None).await?.ok_or(CasError::Missing { digest })?;
    Ok(Some(parts.map_err(Into::into).boxed()))
}
