//! A bare stream of the messages that `prost` generates, whose data are vectors.

use std::sync::Arc;

use futures::{StreamExt as _, stream::BoxStream};
use reapi::bytestream::{
    QueryWriteStatusRequest, QueryWriteStatusResponse, ReadRequest, ReadResponse, WriteRequest,
    WriteResponse,
    byte_stream_server::{ByteStream, ByteStreamServer},
};
use tonic::{Request, Response, Status, Streaming, service::Routes};

use crate::bare_stream::{MESSAGE_BYTES_MAX, PIECE_BYTES, hash_all, pieces_of};

pub(crate) fn routes() -> Routes {
    let service = ByteStreamServer::new(VecStream { piece: Arc::new(vec![7; PIECE_BYTES]) });
    Routes::new(service.max_decoding_message_size(MESSAGE_BYTES_MAX))
}

struct VecStream {
    piece: Arc<Vec<u8>>,
}

#[tonic::async_trait]
impl ByteStream for VecStream {
    type ReadStream = BoxStream<'static, Result<ReadResponse, Status>>;

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let piece = self.piece.clone();
        let pieces = futures::stream::iter(0..pieces_of(&request.into_inner().resource_name));
        Ok(Response::new(pieces.map(move |_| Ok(ReadResponse { data: piece.to_vec() })).boxed()))
    }

    async fn write(
        &self,
        request: Request<Streaming<WriteRequest>>,
    ) -> Result<Response<WriteResponse>, Status> {
        hash_all(request.into_inner(), |message| &message.data).await
    }

    async fn query_write_status(
        &self,
        _: Request<QueryWriteStatusRequest>,
    ) -> Result<Response<QueryWriteStatusResponse>, Status> {
        Err(Status::unimplemented("a bare stream stores nothing"))
    }
}
