//! The memory that all reads and writes of a store together use for buffers.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{CasError, pieces::PIECE_BYTES};

/// Minimum size in bytes of the buffer space.
const SPACE_MIN: u32 = 4 << 20;
/// Size in bytes of pieces while the buffer space is used up.
const SMALL_PIECE_BYTES: u32 = 64 << 10;

/// The buffer space of a store, in bytes. A reader takes space for a piece if any is left, and continues with a small
/// piece otherwise. A writer waits for space.
#[derive(Debug)]
pub(crate) struct BufferSpace {
    permits: Arc<Semaphore>,
    max: u32,
}

/// Buffer space in use; free again when dropped.
#[derive(Debug)]
pub(crate) struct Buffer(OwnedSemaphorePermit);

impl Buffer {
    pub(crate) fn merge(&mut self, other: Self) {
        self.0.merge(other.0);
    }
}

impl BufferSpace {
    pub(crate) fn new(bytes: u32) -> Self {
        let max = bytes.max(SPACE_MIN);
        let permits = usize::try_from(max).unwrap_or(usize::MAX);
        Self { permits: Arc::new(Semaphore::new(permits)), max }
    }

    /// Space for one more piece, if any is left.
    pub(crate) fn for_piece(&self) -> Option<Buffer> {
        self.acquire_now(PIECE_BYTES)
    }

    /// Space for `bytes`, or all that there is for more than that; `None` if it is in use.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<Buffer> {
        self.acquire_now(self.limited(bytes))
    }

    /// Like [`Self::try_take`], after a wait for the space.
    pub(crate) async fn take(&self, bytes: usize) -> Result<Buffer, CasError> {
        let permits = Arc::clone(&self.permits).acquire_many_owned(self.limited(bytes)).await;
        permits.map(Buffer).map_err(|_| CasError::Stopping)
    }

    fn acquire_now(&self, bytes: u32) -> Option<Buffer> {
        Arc::clone(&self.permits).try_acquire_many_owned(bytes).ok().map(Buffer)
    }

    fn limited(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(self.max).min(self.max)
    }
}

/// Size in bytes of the next piece of `left` bytes, of which `buffer` is the space.
pub(crate) fn piece_length(buffer: Option<&Buffer>, left: u64) -> u64 {
    let length = if buffer.is_some() { PIECE_BYTES } else { SMALL_PIECE_BYTES };
    u64::from(length).min(left)
}
