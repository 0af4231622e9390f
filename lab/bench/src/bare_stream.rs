//! The baseline of streams: a server of the same protocol that hashes its input and stores nothing.

use std::{pin::Pin, sync::Arc};

use futures::{Stream, StreamExt as _};
use model::DigestFunction;
use reapi::bytestream::{
    QueryWriteStatusRequest, QueryWriteStatusResponse, ReadRequest, ReadResponse, WriteRequest,
    WriteResponse,
    byte_stream_server::{ByteStream, ByteStreamServer},
};
use remote::Remote;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};

use crate::error::BenchError;

/// The server, which stops when dropped.
pub(crate) struct BareStream {
    url: String,
    task: tokio::task::JoinHandle<()>,
}

impl BareStream {
    /// Starts the server on a free port.
    pub(crate) async fn start() -> Result<Self, BenchError> {
        let failed = |error: std::io::Error| BenchError::new("starting the baseline server", &error);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let url = format!("grpc://{}", listener.local_addr().map_err(failed)?);
        let service = ByteStreamServer::new(Bare { piece: Arc::new(vec![7; 1 << 20]) })
            .max_decoding_message_size(8 << 20);
        let server = cas_grpc::server().add_service(service);
        let task = tokio::spawn(async move {
            // If the server ends early, the requests of the benchmark fail.
            let _ = server.serve_with_incoming(TcpListenerStream::new(listener)).await;
        });
        Ok(Self { url, task })
    }

    /// Opens a connection to the server.
    pub(crate) async fn remote(&self) -> Result<Remote, BenchError> {
        Ok(Remote::connect(&self.url, "", DigestFunction::Sha256).await?)
    }
}

impl Drop for BareStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Bare {
    piece: Arc<Vec<u8>>,
}

#[tonic::async_trait]
impl ByteStream for Bare {
    type ReadStream = Pin<Box<dyn Stream<Item = Result<ReadResponse, Status>> + Send>>;

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let name = request.into_inner().resource_name;
        let size: usize = name.rsplit('/').next().and_then(|size| size.parse().ok()).unwrap_or(0);
        let piece = self.piece.clone();
        let pieces = futures::stream::iter(0..size / piece.len());
        Ok(Response::new(pieces.map(move |_| Ok(ReadResponse { data: piece.to_vec() })).boxed()))
    }

    async fn write(
        &self,
        request: Request<Streaming<WriteRequest>>,
    ) -> Result<Response<WriteResponse>, Status> {
        let mut pieces = request.into_inner();
        let mut hasher = DigestFunction::Sha256.hasher();
        while let Some(piece) = pieces.message().await? {
            hasher.update(&piece.data);
        }
        let committed_size = i64::try_from(hasher.finish().size).unwrap_or(i64::MAX);
        Ok(Response::new(WriteResponse { committed_size }))
    }

    async fn query_write_status(
        &self,
        _: Request<QueryWriteStatusRequest>,
    ) -> Result<Response<QueryWriteStatusResponse>, Status> {
        Err(Status::unimplemented("a bare stream stores nothing"))
    }
}
