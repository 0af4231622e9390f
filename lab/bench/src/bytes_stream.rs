//! A bare stream of messages whose data share the buffers that they arrive in, see [`BytesCodec`].

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{
    StreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use reapi::{
    bytestream::{ReadRequest, WriteResponse},
    stream::{BytesCodec, READ, ReadResponse, SERVICE, WRITE, WriteRequest},
};
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codegen::{Service, http},
    server::{ClientStreamingService, Grpc, NamedService, ServerStreamingService},
    service::Routes,
};

use crate::bare_stream::{MESSAGE_BYTES_MAX, PIECE_BYTES, hash_all, pieces_of};

pub(crate) fn routes() -> Routes {
    Routes::new(BytesStream { piece: Bytes::from(vec![7; PIECE_BYTES]) })
}

#[derive(Clone)]
struct BytesStream {
    piece: Bytes,
}

impl NamedService for BytesStream {
    const NAME: &'static str = SERVICE;
}

impl Service<http::Request<Body>> for BytesStream {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match request.uri().path() {
            READ => {
                let read = Read { piece: self.piece.clone() };
                Box::pin(async move {
                    let mut grpc = Grpc::new(BytesCodec::<ReadResponse, ReadRequest>::default());
                    Ok(grpc.server_streaming(read, request).await)
                })
            }
            WRITE => Box::pin(async move {
                let grpc = Grpc::new(BytesCodec::<WriteResponse, WriteRequest>::default());
                let mut grpc = grpc.max_decoding_message_size(MESSAGE_BYTES_MAX);
                Ok(grpc.client_streaming(Write, request).await)
            }),
            _ => Box::pin(async { Ok(Status::unimplemented("a bare stream stores nothing").into_http()) }),
        }
    }
}

struct Read {
    piece: Bytes,
}

impl ServerStreamingService<ReadRequest> for Read {
    type Response = ReadResponse;
    type ResponseStream = BoxStream<'static, Result<ReadResponse, Status>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<ReadRequest>) -> Self::Future {
        let message = ReadResponse { data: self.piece.clone() };
        let count = pieces_of(&request.into_inner().resource_name);
        ready(Ok(Response::new(stream::repeat(message).take(count).map(Ok).boxed())))
    }
}

struct Write;

impl ClientStreamingService<WriteRequest> for Write {
    type Response = WriteResponse;
    type Future = BoxFuture<'static, Result<Response<WriteResponse>, Status>>;

    fn call(&mut self, request: Request<Streaming<WriteRequest>>) -> Self::Future {
        Box::pin(hash_all(request.into_inner(), |message| &message.data))
    }
}
