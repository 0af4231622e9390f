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

use super::{
    EventRoom, LARGE_TOTAL_BYTES_MAX, REQUEST_BYTES_MAX, SMALL_BYTES_MAX, SMALL_TOTAL_BYTES_MAX,
    STREAM_BYTES_MAX, UNIT,
};

/// Length of what precedes a message: a flag and the length.
const HEAD_BYTES: usize = 5;
/// Time limit of a request from its first bytes on, and the bytes per second for which it is longer.
const REQUEST_TIME: Duration = Duration::from_secs(60);
const BYTES_PER_SECOND: usize = 256 << 10;

/// A request, and the memory that it takes until it is acknowledged.
pub(super) struct Received {
    pub(super) request: ToolStreamRequest,
    pub(super) bytes: usize,
    /// When it had arrived.
    pub(super) at: Instant,
    _memory: Memory,
}

/// Memory of a stream, and of all streams of the process.
struct Memory {
    _own: OwnedSemaphorePermit,
    _shared: OwnedSemaphorePermit,
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
        let memory = if bytes <= SMALL_BYTES_MAX {
            self.fill(bytes).await?;
            memory(&self.own_room, &self.room.small, bytes, SMALL_TOTAL_BYTES_MAX).await?
        } else {
            let memory = memory(&self.own_room, &self.room.large, bytes, LARGE_TOTAL_BYTES_MAX).await?;
            self.fill(bytes).await?;
            memory
        };
        let message = self.buffer.split_to(bytes).freeze();
        let request = ToolStreamRequest::decode(message)
            .map_err(|error| Status::invalid_argument(format!("the request is malformed: {error}")))?;
        Ok(Some(Received { request, bytes, at: Instant::now(), _memory: memory }))
    }

    /// Reads until the buffer has the whole request, within its time limit.
    async fn fill(&mut self, bytes: usize) -> Result<(), Status> {
        let limit = REQUEST_TIME + Duration::from_secs((bytes / BYTES_PER_SECOND) as u64);
        let late = |_| {
            let seconds = limit.as_secs();
            Status::unavailable(format!(
                "timed out: a build event of {bytes} bytes was not sent within {seconds} s"
            ))
        };
        tokio::time::timeout(limit, self.read_to(bytes)).await.map_err(late)?
    }

    async fn read_to(&mut self, bytes: usize) -> Result<(), Status> {
        while self.buffer.len() < bytes {
            let data = frame(&mut self.body).await?.ok_or_else(cut_off)?;
            self.buffer.extend_from_slice(&data);
        }
        Ok(())
    }
}

/// Waits for memory: the stream's own first. A stream that waits for its own acknowledgements takes nothing from others.
async fn memory(
    own: &Arc<Semaphore>,
    shared: &Arc<Semaphore>,
    bytes: usize,
    limit: usize,
) -> Result<Memory, Status> {
    let own = reserve(own, bytes, STREAM_BYTES_MAX).await?;
    Ok(Memory { _own: own, _shared: reserve(shared, bytes, limit).await? })
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
