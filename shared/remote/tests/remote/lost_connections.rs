//! Downloads whose connection is lost.

use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use model::DigestFunction;
use reapi::bytestream::{
    QueryWriteStatusRequest, QueryWriteStatusResponse, ReadRequest, ReadResponse, WriteRequest,
    WriteResponse,
    byte_stream_server::{ByteStream, ByteStreamServer},
};
use remote::{Remote, RemoteError, Resume};
use tokio::{net::TcpListener, time::Instant};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming, transport::Server};

const CONTENT: &[u8] = b"content";
const PIECE: usize = 3;

/// Sends one piece of a blob for each call, then ends the call as if it stopped.
struct OnePiece(Arc<Mutex<Vec<i64>>>);

#[tonic::async_trait]
impl ByteStream for OnePiece {
    type ReadStream = tokio_stream::Iter<std::vec::IntoIter<Result<ReadResponse, Status>>>;

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let offset = request.into_inner().read_offset;
        self.0.lock().unwrap().push(offset);
        let rest = &CONTENT[usize::try_from(offset).unwrap()..];
        let piece = ReadResponse { data: rest[..rest.len().min(PIECE)].to_vec() };
        Ok(Response::new(tokio_stream::iter(vec![Ok(piece), Err(Status::unavailable("stopping"))])))
    }

    async fn write(&self, _: Request<Streaming<WriteRequest>>) -> Result<Response<WriteResponse>, Status> {
        Err(Status::unimplemented("this server is read-only"))
    }

    async fn query_write_status(
        &self,
        _: Request<QueryWriteStatusRequest>,
    ) -> Result<Response<QueryWriteStatusResponse>, Status> {
        Err(Status::unimplemented("this server is read-only"))
    }
}

/// Connects to the same server again, this many times.
#[derive(Debug)]
struct Again(Mutex<u32>, Remote);

impl Resume for Again {
    fn reconnect(&self, _: Instant) -> BoxFuture<'_, Option<Remote>> {
        let mut left = self.0.lock().unwrap();
        let may = *left > 0;
        *left = left.saturating_sub(1);
        Box::pin(std::future::ready(may.then(|| self.1.clone())))
    }
}

#[tokio::test]
async fn a_download_continues_where_it_was_lost_while_a_server_is_found() {
    let offsets = Arc::<Mutex<Vec<i64>>>::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("grpc://{}", listener.local_addr().unwrap());
    let server = Server::builder().add_service(ByteStreamServer::new(OnePiece(Arc::clone(&offsets))));
    let server = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let remote = Remote::connect(&url, "", DigestFunction::Sha256).await.unwrap();
    let digest = DigestFunction::Sha256.digest(CONTENT);
    assert!(matches!(remote.read(&digest).await, Err(RemoteError::Refused { .. })));
    offsets.lock().unwrap().clear();
    let resuming = |times| remote.resuming(Arc::new(Again(Mutex::new(times), remote.clone())));
    assert_eq!(resuming(3).read(&digest).await.unwrap(), CONTENT);
    assert_eq!(*offsets.lock().unwrap(), [0, 3, 6]);
    let lost = resuming(1).read(&digest).await.unwrap_err();
    let line = format!("the connection to the gateway was lost while reading {digest}");
    assert!(lost.is_unreachable() && lost.to_string() == line, "{lost}");
    assert!(std::error::Error::source(&lost).is_some(), "the failed call is not named");
    server.abort();
}
