//! Log streams over `ByteStream`.

use std::sync::Arc;

use crate::common::{Options, Server, pieces};
use bytes::Bytes;
use callers::Caller;
use cas_grpc::{LiveRead, LogPiece, LogProgress, LogStream, LogWrite};
use futures::{StreamExt as _, future::BoxFuture, stream, stream::BoxStream};
use tokio::sync::Mutex;
use tonic::{Code, Status};

fn code<T: std::fmt::Debug>(outcome: Result<T, Status>) -> Code {
    outcome.unwrap_err().code()
}

/// A log stream in memory.
#[derive(Default)]
struct Log(Mutex<(Vec<u8>, bool)>);

impl LiveRead for Log {
    fn read<'a>(
        &'a self,
        _: &'a Caller,
        _: &'a str,
        id: &'a str,
        offset: u64,
        limit: Option<u64>,
    ) -> BoxFuture<'a, Result<LogStream, Status>> {
        Box::pin(async move {
            if id != "7" {
                return Err(Status::not_found("no such stream"));
            }
            let log = self.0.lock().await;
            let from = usize::try_from(offset).unwrap().min(log.0.len());
            let count = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap());
            let content = Bytes::copy_from_slice(&log.0[from..from.saturating_add(count).min(log.0.len())]);
            Ok(stream::iter([Ok(content)]).boxed())
        })
    }
}

impl LogWrite for Log {
    fn write<'a>(
        &'a self,
        parent: &'a str,
        id: &'a str,
        token: &'a str,
        offset: u64,
        mut pieces: BoxStream<'static, Result<LogPiece, Status>>,
    ) -> BoxFuture<'a, Result<LogProgress, Status>> {
        Box::pin(async move {
            assert_eq!((parent, id, token), ("main", "7", "secret"));
            let mut log = self.0.lock().await;
            assert_eq!(log.0.len() as u64, offset);
            while let Some(piece) = pieces.next().await {
                match piece? {
                    LogPiece::Data(data) => log.0.extend_from_slice(&data),
                    LogPiece::Finish => log.1 = true,
                }
            }
            Ok(LogProgress { committed: log.0.len() as u64, complete: log.1 })
        })
    }

    fn progress<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<LogProgress, Status>> {
        Box::pin(async move {
            let log = self.0.lock().await;
            Ok(LogProgress { committed: log.0.len() as u64, complete: log.1 })
        })
    }
}

#[tokio::test]
async fn log_streams_go_to_the_log_store() {
    let log = Arc::new(Log::default());
    let options = Options { live: Some(log.clone()), log_writes: Some(log), ..Options::default() };
    let server = Server::with(options).await;
    let name = "main/logstreams/7/secret";
    assert_eq!(server.send(pieces(name, b"hello ", 4, 0, false)).await.unwrap().committed_size, 6);
    assert!(!server.query(name).await.unwrap().complete);
    assert_eq!(server.send(pieces(name, b"world", 4, 6, true)).await.unwrap().committed_size, 11);
    assert!(server.query(name).await.unwrap().complete);
    assert_eq!(server.read("main/logstreams/7", 0, 0).await.unwrap(), b"hello world");
    assert_eq!(server.read("main/logstreams/7", 6, 3).await.unwrap(), b"wor");
    assert_eq!(code(server.read("main/logstreams/8", 0, 0).await), Code::NotFound);
    assert_eq!(code(server.read(name, 0, 0).await), Code::InvalidArgument);
    assert_eq!(code(server.send(pieces("main/logstreams/7", b"x", 4, 0, true)).await), Code::InvalidArgument);
    let without = Server::start().await;
    assert_eq!(code(without.read("main/logstreams/7", 0, 0).await), Code::NotFound);
    assert_eq!(code(without.send(pieces(name, b"x", 4, 0, true)).await), Code::NotFound);
}
