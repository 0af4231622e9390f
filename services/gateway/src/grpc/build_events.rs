//! The build event service: tools publish their events, and each is acknowledged once it is stored on the bus.
//!
//! The archive only reads what is stored, so that Bazel never waits for it.

mod call;
mod owner;
mod requests;
mod service;
mod unacknowledged;

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;

pub(crate) use service::BuildEvents;

/// Maximum size of one request in bytes: Bazel cuts its events below 50 MiB.
const REQUEST_BYTES_MAX: usize = 64 << 20;
/// Bytes of events that one stream may have unacknowledged. One larger event is accepted alone.
const STREAM_BYTES_MAX: usize = 4 << 20;
/// Requests up to this size in bytes are read before memory is reserved for them: a connection buffers as much anyway.
/// A client that announces more than it sends then takes nothing from others. Most events of Bazel are smaller.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// Bytes of small and of larger events that all streams of this process may have unacknowledged.
const SMALL_TOTAL_BYTES_MAX: usize = 64 << 20;
const LARGE_TOTAL_BYTES_MAX: usize = 128 << 20;
/// Granularity of these limits in bytes.
const UNIT: usize = 1 << 10;
/// How long a write is retried while the bus or the store is away. Bazel waits at an open stream without a limit, and
/// gives up about 9 s after the first of five streams that break.
const PATIENCE: Duration = Duration::from_secs(60);

/// Memory for the events of all streams of this process. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct EventRoom {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Default for EventRoom {
    fn default() -> Self {
        let of = |bytes: usize| Arc::new(Semaphore::new(bytes / UNIT));
        Self { small: of(SMALL_TOTAL_BYTES_MAX), large: of(LARGE_TOTAL_BYTES_MAX) }
    }
}
