//! Messages of gRPC as bytes of HTTP/2.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http_body::{Body as _, Frame};
use invariant::{Present as _, impossible};
use prost::Message;
use reapi::metadata;
use tonic::{
    Status,
    body::Body,
    codegen::{http, http::header::CONTENT_TYPE},
    metadata::{GRPC_CONTENT_TYPE, MetadataMap},
};

use crate::{fault::busy, log_streams::LogStream};

const LENGTH: &str = "the length of a message in 32 bits";

/// Length in bytes of a message header: a flag and the length.
const HEAD_BYTES: usize = 5;

/// Maximum size in bytes of a request that consists of a name and some numbers.
const REQUEST_BYTES_MAX: usize = 16 << 10;

/// Maximum size in bytes of a message that is sent: clients accept 4 MiB.
const MESSAGE_BYTES_MAX: usize = 2 << 20;

/// Returns the next bytes of a request; `None` at its end. Waits for at most `pause_max`.
pub(super) async fn frame(body: &mut Body, pause_max: Duration) -> Result<Option<Bytes>, Status> {
    loop {
        let next = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
        match tokio::time::timeout(pause_max, next).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Ok(Some(Err(status))) => return Err(status),
            Ok(None) => return Ok(None),
            Err(_) => {
                let seconds = pause_max.as_secs_f64();
                return Err(busy(&format!(
                    "timed out waiting for client data ({seconds} s); resume the stream"
                )));
            }
        }
    }
}

/// Reads a request of exactly one message.
pub(super) async fn single_request<M: Message + Default>(
    mut body: Body,
    pause_max: Duration,
) -> Result<M, Status> {
    let mut bytes = BytesMut::new();
    while let Some(data) = frame(&mut body, pause_max).await? {
        bytes.extend_from_slice(&data);
        if bytes.len() > REQUEST_BYTES_MAX {
            return Err(Status::invalid_argument("the request is too long"));
        }
    }
    if bytes.len() < HEAD_BYTES {
        return Err(Status::invalid_argument("the request contains no message"));
    }
    if bytes.get_u8() != 0 {
        return Err(compressed());
    }
    if bytes.get_u32() as usize != bytes.len() {
        return Err(Status::invalid_argument("the request must be exactly one message"));
    }
    M::decode(bytes).map_err(|error| Status::invalid_argument(format!("the request is malformed: {error}")))
}

/// The error for a message compressed by gRPC, which the server does not offer.
pub(super) fn compressed() -> Status {
    Status::unimplemented("gRPC message compression is not supported; use compressed blobs")
}

/// Checks that the resource name in the headers, if set, equals the name in the request.
pub(super) fn check_repeated_name(headers: &MetadataMap, name: &str) -> Result<(), Status> {
    match metadata::resource_name(headers) {
        Some(repeated) if repeated != name => Err(Status::invalid_argument(format!(
            "the header {} differs from the resource name in the request",
            metadata::RESOURCE_NAME
        ))),
        _ => Ok(()),
    }
}

/// Creates a response of one message.
pub(super) fn single_response(message: &impl Message) -> http::Response<Body> {
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + message.encoded_len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.encoded_len()).present_or(u32::MAX, LENGTH));
    message.encode(&mut bytes).present("a buffer that grows is too small for a message");
    respond(ResponseBody { ready: bytes.freeze(), rest: Bytes::new(), pieces: None, ended: false })
}

/// Creates a response of `ReadResponse` messages.
pub(super) fn stream_response(pieces: LogStream) -> http::Response<Body> {
    respond(ResponseBody { ready: Bytes::new(), rest: Bytes::new(), pieces: Some(pieces), ended: false })
}

fn respond(body: ResponseBody) -> http::Response<Body> {
    let mut response = http::Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}

/// A response body. The bytes of blobs are not copied.
struct ResponseBody {
    /// The bytes to send next.
    ready: Bytes,
    /// The rest of a piece that exceeds the maximum message size.
    rest: Bytes,
    pieces: Option<LogStream>,
    ended: bool,
}

impl ResponseBody {
    /// Starts a message with the first part of `piece`. Returns the header of the message.
    fn begin(&mut self, mut piece: Bytes) -> Bytes {
        self.ready = piece.split_to(piece.len().min(MESSAGE_BYTES_MAX));
        self.rest = piece;
        head(self.ready.len())
    }

    fn end(&mut self, status: &Status) -> Frame<Bytes> {
        self.ended = true;
        self.pieces = None;
        let mut trailers = http::HeaderMap::new();
        if status.add_header(&mut trailers).is_err() {
            impossible!("an escaped message of a status is not a valid header");
            trailers.insert(Status::GRPC_STATUS, (status.code() as i32).into());
        }
        Frame::trailers(trailers)
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        let ready = std::mem::take(&mut this.ready);
        if !ready.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(ready))));
        }
        let rest = std::mem::take(&mut this.rest);
        if !rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(this.begin(rest)))));
        }
        loop {
            let piece = match &mut this.pieces {
                Some(pieces) => ready!(pieces.as_mut().poll_next(cx)),
                None => None,
            };
            let frame = match piece {
                Some(Ok(piece)) if piece.is_empty() => continue,
                Some(Ok(piece)) => Frame::data(this.begin(piece)),
                Some(Err(status)) => this.end(&status),
                None => this.end(&Status::ok("")),
            };
            return Poll::Ready(Some(Ok(frame)));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

/// Returns the bytes before the data of a `ReadResponse`: the message header, and the tag and length of the field.
fn head(length: usize) -> Bytes {
    const DATA_TAG: u8 = 10 << 3 | 2;
    let mut field = BytesMut::with_capacity(11);
    field.put_u8(DATA_TAG);
    prost::encoding::encode_varint(length as u64, &mut field);
    let mut head = BytesMut::with_capacity(HEAD_BYTES + field.len());
    head.put_u8(0);
    head.put_u32(u32::try_from(field.len() + length).present_or(u32::MAX, LENGTH));
    head.put(field);
    head.freeze()
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream};
    use reapi::stream::ReadResponse;

    use super::*;

    #[tokio::test]
    async fn pieces_become_messages_and_the_end_a_status() {
        let long = Bytes::from(vec![7; MESSAGE_BYTES_MAX * 2 + 3]);
        let pieces = vec![Ok(Bytes::from_static(b"one")), Ok(Bytes::new()), Ok(long.clone())];
        let mut body = stream_response(stream::iter(pieces).boxed()).into_body();
        let (mut bytes, mut trailers) = (BytesMut::new(), None);
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            match frame.unwrap().into_data() {
                Ok(data) => bytes.extend_from_slice(&data),
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        let mut messages = Vec::new();
        while bytes.has_remaining() {
            assert_eq!(bytes.get_u8(), 0);
            let length = bytes.get_u32() as usize;
            messages.push(ReadResponse::decode(bytes.split_to(length)).unwrap().data);
        }
        assert_eq!(
            messages.iter().map(Bytes::len).collect::<Vec<_>>(),
            [3, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, 3]
        );
        assert_eq!(messages[1..].concat(), long);
        assert_eq!(trailers.unwrap()[Status::GRPC_STATUS], "0");
    }
}
