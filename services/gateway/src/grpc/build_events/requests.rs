//! Reads the requests of a stream one by one, each only when there is memory for it.
//!
//! A stream may pause for hours between two requests, not within one.

use std::{pin::Pin, sync::Arc, time::Duration};

use build_events::service::ToolStreamRequest;
use bytes::{Buf as _, Bytes, BytesMut};
use http_body::Body as _;
use invariant::impossible;
use prost::Message as _;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tonic::{Status, body::Body};

use super::{EventRoom, REQUEST_BYTES_MAX, STREAM_BYTES_MAX, TOTAL_BYTES_MAX, UNIT};

/// Length of what precedes a message: a flag and the length.
const HEAD_BYTES: usize = 5;
/// Maximum pause within a request.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A request, and the memory that it takes until it is acknowledged.
pub(super) struct Received {
    pub(super) request: ToolStreamRequest,
    pub(super) bytes: usize,
    /// When it had arrived.
    pub(super) at: Instant,
    _memory: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

/// The requests of one stream.
pub(super) struct Requests {
    body: Body,
    buffer: BytesMut,
    own_room: Arc<Semaphore>,
    room: EventRoom,
}

impl Requests {
    pub(super) fn new(body: Body, room: EventRoom) -> Self {
        let own_room = Arc::new(Semaphore::new(STREAM_BYTES_MAX / UNIT));
        Self { body, buffer: BytesMut::new(), own_room, room }
    }

    /// The next request; `None` if the client sends no more.
    pub(super) async fn next(&mut self) -> Result<Option<Received>, Status> {
        while self.buffer.len() < HEAD_BYTES {
            match frame(&mut self.body).await? {
                Some(data) => self.buffer.extend_from_slice(&data),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(cut_off()),
            }
        }
        if self.buffer.get_u8() != 0 {
            return Err(Status::unimplemented("gRPC message compression is not supported for build events"));
        }
        let bytes = self.buffer.get_u32() as usize;
        if bytes > REQUEST_BYTES_MAX {
            let text = format!("a build event has {bytes} bytes, at most {REQUEST_BYTES_MAX} are accepted");
            return Err(Status::invalid_argument(text));
        }
        // The stream's own limit first: a stream that waits for its own acknowledgements takes nothing from others.
        let memory = (
            reserve(&self.own_room, bytes, STREAM_BYTES_MAX).await?,
            reserve(&self.room.0, bytes, TOTAL_BYTES_MAX).await?,
        );
        while self.buffer.len() < bytes {
            let next = tokio::time::timeout(PAUSE_MAX, frame(&mut self.body)).await;
            let late = |_| Status::unavailable("timed out waiting for the rest of a build event (60 s)");
            let data = next.map_err(late)??.ok_or_else(cut_off)?;
            self.buffer.extend_from_slice(&data);
        }
        let message = self.buffer.split_to(bytes).freeze();
        let request = ToolStreamRequest::decode(message)
            .map_err(|error| Status::invalid_argument(format!("the request is malformed: {error}")))?;
        Ok(Some(Received { request, bytes, at: Instant::now(), _memory: memory }))
    }
}

/// Waits for memory. A request larger than the limit takes all of it.
async fn reserve(room: &Arc<Semaphore>, bytes: usize, limit: usize) -> Result<OwnedSemaphorePermit, Status> {
    let units = u32::try_from(bytes.min(limit).div_ceil(UNIT)).unwrap_or(u32::MAX);
    Arc::clone(room).acquire_many_owned(units).await.map_err(|_| {
        impossible!("the semaphore of the memory for build events is closed");
        Status::unavailable("the gateway shuts down")
    })
}

/// The next bytes; `None` at the end.
async fn frame(body: &mut Body) -> Result<Option<Bytes>, Status> {
    loop {
        match std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Some(Err(status)) => return Err(status),
            None => return Ok(None),
        }
    }
}

fn cut_off() -> Status {
    Status::unavailable("the stream ended within a request")
}
