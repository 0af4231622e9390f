//! Log streams, which other services store.

use callers::Caller;
use futures::{StreamExt as _, stream};
use tonic::Status;

use super::write_requests::{Event, WriteRequests};
use crate::{
    api::Shared,
    log_streams::{LogPiece, LogProgress, LogStream},
};

/// Reads a log stream.
pub(super) async fn read(
    shared: &Shared,
    caller: &Caller,
    (parent, id): (&str, &str),
    offset: u64,
    limit: Option<u64>,
) -> Result<LogStream, Status> {
    let live = shared.api.live.as_ref();
    let live = live.ok_or_else(|| Status::not_found(format!("unknown log stream {id:?}")))?;
    live.read(caller, parent, id, offset, limit).await
}

/// Writes a log stream and returns its progress.
pub(super) async fn write(
    shared: &Shared,
    parent: &str,
    id: &str,
    token: &str,
    pieces: WriteRequests,
) -> Result<LogProgress, Status> {
    let writes = shared.api.log_writes.as_ref();
    let writes = writes.ok_or_else(|| Status::not_found(format!("unknown log stream {id:?}")))?;
    let offset = pieces.offset();
    let pieces = stream::unfold(Some(pieces), |pieces| async move {
        let mut pieces = pieces?;
        match pieces.next().await {
            Ok(Event::Data(data)) => Some((Ok(LogPiece::Data(data)), Some(pieces))),
            Ok(Event::Finish) => Some((Ok(LogPiece::Finish), None)),
            Ok(Event::Closed) => None,
            Err(status) => Some((Err(status), None)),
        }
    });
    writes.write(parent, id, token, offset, pieces.boxed()).await
}

/// Returns the progress of a log stream.
pub(super) async fn progress(
    shared: &Shared,
    parent: &str,
    id: &str,
    token: &str,
) -> Result<LogProgress, Status> {
    let writes = shared.api.log_writes.as_ref();
    let writes = writes.ok_or_else(|| Status::not_found(format!("unknown log stream {id:?}")))?;
    writes.progress(parent, id, token).await
}
