//! `ByteStream` without copies: its messages with [`Bytes`] in place of vectors, and a client that uses them. On the
//! wire they equal the messages of [`crate::bytestream`].

use std::marker::PhantomData;

use bytes::Bytes;
use prost::Message;
use tonic::{
    IntoRequest, IntoStreamingRequest, Response, Status, Streaming,
    body::Body,
    client::{Grpc, GrpcService},
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{StdError, http::uri::PathAndQuery},
    transport::Channel,
};

use crate::bytestream::{QueryWriteStatusRequest, QueryWriteStatusResponse, ReadRequest, WriteResponse};

/// The full name of the service.
pub const SERVICE: &str = "google.bytestream.ByteStream";
/// The path of the method `Read`.
pub const READ: &str = "/google.bytestream.ByteStream/Read";
/// The path of the method `Write`.
pub const WRITE: &str = "/google.bytestream.ByteStream/Write";
/// The path of the method `QueryWriteStatus`.
pub const QUERY_WRITE_STATUS: &str = "/google.bytestream.ByteStream/QueryWriteStatus";

/// A message of the stream that `Read` returns.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ReadResponse {
    /// The next bytes of the resource.
    #[prost(bytes = "bytes", tag = "10")]
    pub data: Bytes,
}

/// A message of the stream that `Write` accepts.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WriteRequest {
    /// Name of the resource; required in the first message only.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// Offset of the data in bytes.
    #[prost(int64, tag = "2")]
    pub write_offset: i64,
    /// Whether this message completes the write.
    #[prost(bool, tag = "3")]
    pub finish_write: bool,
    /// The next bytes of the resource.
    #[prost(bytes = "bytes", tag = "10")]
    pub data: Bytes,
}

/// Encodes `T` and decodes `U`; a field of [`Bytes`] shares the buffer that it arrived in.
#[derive(Debug)]
pub struct BytesCodec<T, U>(PhantomData<fn(T) -> U>);

impl<T, U> Default for BytesCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + 'static, U: Message + Default + 'static> Codec for BytesCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = BytesEncoder<T>;
    type Decoder = BytesDecoder<U>;

    fn encoder(&mut self) -> BytesEncoder<T> {
        BytesEncoder(PhantomData)
    }

    fn decoder(&mut self) -> BytesDecoder<U> {
        BytesDecoder(PhantomData)
    }
}

#[derive(Debug)]
pub struct BytesEncoder<T>(PhantomData<fn(T)>);

impl<T: Message> Encoder for BytesEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.encoded_len());
        item.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(64, 32 << 10)
    }
}

#[derive(Debug)]
pub struct BytesDecoder<U>(PhantomData<fn() -> U>);

impl<U: Message + Default> Decoder for BytesDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        U::decode(buffer).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

#[derive(Debug, Clone)]
pub struct ByteStreamClient<T = Channel> {
    inner: Grpc<T>,
}

impl<T> ByteStreamClient<T>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<StdError> + Send,
{
    /// Creates a client over `channel`.
    pub fn new(channel: T) -> Self {
        Self { inner: Grpc::new(channel).max_decoding_message_size(16 << 20) }
    }

    /// Reads a resource as a stream.
    pub async fn read(
        &mut self,
        request: impl IntoRequest<ReadRequest>,
    ) -> Result<Response<Streaming<ReadResponse>>, Status> {
        self.ready().await?;
        let codec = BytesCodec::<ReadRequest, ReadResponse>::default();
        self.inner.server_streaming(request.into_request(), PathAndQuery::from_static(READ), codec).await
    }

    /// Writes a resource as a stream.
    pub async fn write(
        &mut self,
        request: impl IntoStreamingRequest<Message = WriteRequest>,
    ) -> Result<Response<WriteResponse>, Status> {
        self.ready().await?;
        let codec = BytesCodec::<WriteRequest, WriteResponse>::default();
        let request = request.into_streaming_request();
        self.inner.client_streaming(request, PathAndQuery::from_static(WRITE), codec).await
    }

    /// Asks how many bytes of an upload the server has accepted.
    pub async fn query_write_status(
        &mut self,
        request: impl IntoRequest<QueryWriteStatusRequest>,
    ) -> Result<Response<QueryWriteStatusResponse>, Status> {
        self.ready().await?;
        let codec = BytesCodec::<QueryWriteStatusRequest, QueryWriteStatusResponse>::default();
        let path = PathAndQuery::from_static(QUERY_WRITE_STATUS);
        self.inner.unary(request.into_request(), path, codec).await
    }

    async fn ready(&mut self) -> Result<(), Status> {
        let ready = self.inner.ready().await;
        ready.map_err(|error| Status::unavailable(format!("cannot connect: {}", error.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytestream;

    #[test]
    fn messages_are_the_same_on_the_wire() {
        let ours = WriteRequest {
            resource_name: "name".into(),
            write_offset: 7,
            finish_write: true,
            data: Bytes::from_static(b"data"),
        };
        let theirs = bytestream::WriteRequest {
            resource_name: "name".into(),
            write_offset: 7,
            finish_write: true,
            data: b"data".to_vec(),
        };
        assert_eq!(ours.encode_to_vec(), theirs.encode_to_vec());
        let read = ReadResponse { data: Bytes::from_static(b"data") };
        let theirs = bytestream::ReadResponse { data: b"data".to_vec() };
        assert_eq!(read.encode_to_vec(), theirs.encode_to_vec());
    }
}
