//! A server that answers a read with its headers before it looks for the blob.

use model::DigestFunction;
use reapi::bytestream::{
    QueryWriteStatusRequest, QueryWriteStatusResponse, ReadRequest, ReadResponse, WriteRequest,
    WriteResponse,
    byte_stream_server::{ByteStream, ByteStreamServer},
};
use remote::{Remote, RemoteError};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming, transport::Server};

struct HeadersFirst;

#[tonic::async_trait]
impl ByteStream for HeadersFirst {
    type ReadStream = tokio_stream::Once<Result<ReadResponse, Status>>;

    async fn read(&self, _: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        Ok(Response::new(tokio_stream::once(Err(Status::not_found("no such blob")))))
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

#[tokio::test]
async fn a_blob_is_missing_though_the_answer_began() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("grpc://{}", listener.local_addr().unwrap());
    let server = Server::builder().add_service(ByteStreamServer::new(HeadersFirst));
    let server = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let remote = Remote::connect(&url, "", DigestFunction::Sha256).await.unwrap();
    let absent = DigestFunction::Sha256.digest(b"absent");
    let read = remote.read(&absent).await;
    assert!(matches!(read, Err(RemoteError::Missing { digest }) if digest == absent), "{read:?}");
    server.abort();
}
