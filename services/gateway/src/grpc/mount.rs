//! What the CAS services need from the gateway: the instance rules and the log streams.

use std::sync::Arc;

use callers::Caller;
use cas_grpc::{BlobApi, Limits, LiveRead, LogPiece, LogProgress, LogStream, LogWrite};
use futures::{
    FutureExt as _, StreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use policy::{
    access::{Need, Right},
    zones::Zones,
};
use tonic::Status;

use super::{
    Core, live,
    log_streams::{self, LogWriter},
    names::LiveName,
};

/// The configuration of the CAS services.
pub(crate) fn blob_api(core: &Core) -> BlobApi {
    let logs = Arc::new(Logs(core.clone()));
    let bus = core.bus.clone();
    BlobApi {
        cas: core.cas.clone(),
        instances: core.config.instances.clone(),
        zones: Zones::clone(&core.zones),
        limits: Limits::default(),
        now: Arc::new(move || bus.now()),
        executes: true,
        live: Some(logs.clone()),
        log_writes: Some(logs),
    }
}

struct Logs(Core);

impl LiveRead for Logs {
    fn read<'a>(
        &'a self,
        caller: &'a Caller,
        parent: &'a str,
        id: &'a str,
        offset: u64,
        limit: Option<u64>,
    ) -> BoxFuture<'a, Result<LogStream, Status>> {
        async move {
            let pieces = match LiveName::of(id) {
                Some(name) if !sees(caller, &name) => {
                    return Err(Status::not_found(format!("unknown log stream {id:?}")));
                }
                Some(name) => live::follow(&self.0, parent, name, offset).await?,
                None => log_streams::follow(&self.0, parent, id, offset).await?,
            };
            Ok(match limit {
                None => pieces,
                Some(limit) => bounded(pieces, limit),
            })
        }
        .boxed()
    }
}

/// Whether a caller may read the output of an execution.
fn sees(caller: &Caller, name: &LiveName) -> bool {
    caller.rights.check(Need::In(Right::Execute, &name.key.group)).is_ok()
}

/// The first `limit` bytes of `pieces`.
fn bounded(pieces: LogStream, limit: u64) -> LogStream {
    let next = |(mut pieces, left): (LogStream, u64)| async move {
        if left == 0 {
            return None;
        }
        let piece = pieces.next().await?.map(|mut data| {
            data.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            data
        });
        let left = piece.as_ref().map_or(0, |data| left - data.len() as u64);
        Some((piece, (pieces, left)))
    };
    stream::unfold((pieces, limit), next).boxed()
}

impl LogWrite for Logs {
    fn write<'a>(
        &'a self,
        parent: &'a str,
        id: &'a str,
        token: &'a str,
        offset: u64,
        mut pieces: BoxStream<'static, Result<LogPiece, Status>>,
    ) -> BoxFuture<'a, Result<LogProgress, Status>> {
        async move {
            let mut writer = LogWriter::open(&self.0, parent, id, token).await?;
            if offset != writer.length() {
                let length = writer.length();
                let text = format!("cannot write at offset {offset}: {length} bytes committed; resume there");
                return Err(Status::out_of_range(text));
            }
            let mut last = false;
            loop {
                // Commit the received data before waiting for more.
                let next = if let Some(next) = pieces.next().now_or_never() {
                    next
                } else {
                    writer.flush(false).await?;
                    pieces.next().await
                };
                match next {
                    Some(Ok(LogPiece::Data(data))) => writer.write(&data).await?,
                    Some(Ok(LogPiece::Finish)) => {
                        last = true;
                        break;
                    }
                    Some(Err(status)) => {
                        writer.flush(false).await?;
                        return Err(status);
                    }
                    None => break,
                }
            }
            writer.flush(last).await?;
            Ok(progress_of(&writer))
        }
        .boxed()
    }

    fn progress<'a>(
        &'a self,
        parent: &'a str,
        id: &'a str,
        token: &'a str,
    ) -> BoxFuture<'a, Result<LogProgress, Status>> {
        async move { Ok(progress_of(&LogWriter::open(&self.0, parent, id, token).await?)) }.boxed()
    }
}

fn progress_of(writer: &LogWriter) -> LogProgress {
    LogProgress { committed: writer.length(), complete: writer.is_complete() }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[tokio::test]
    async fn a_limit_cuts_the_stream() {
        let of = |limit| {
            let pieces = ["abc", "def", "ghi"].map(|text| Ok(Bytes::from_static(text.as_bytes())));
            bounded(stream::iter(pieces).boxed(), limit)
        };
        for (limit, wanted) in [(0, ""), (2, "ab"), (3, "abc"), (4, "abcd"), (100, "abcdefghi")] {
            let parts: Vec<Bytes> =
                of(limit).map(|part: Result<Bytes, Status>| part.unwrap()).collect().await;
            assert_eq!(parts.concat(), wanted.as_bytes(), "{limit}");
        }
    }
}
