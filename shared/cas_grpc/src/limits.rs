//! Limits of messages, memory and HTTP/2 windows.

use std::time::Duration;

/// Maximum bytes of the blobs in one batch; leaves space for the rest of a message of 4 MiB.
pub const BATCH_BYTES_MAX: u64 = (4 << 20) - (512 << 10);

/// Bytes that a client may send ahead in one stream.
pub(crate) const STREAM_WINDOW: u32 = 4 << 20;
/// Bytes that a client may send ahead in one connection.
pub(crate) const CONNECTION_WINDOW: u32 = 64 << 20;

/// Limits of sizes and memory.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum bytes of all blobs in one batch.
    pub batch_bytes_max: u64,
    /// Maximum size in bytes of an incoming message.
    pub message_bytes_max: usize,
    /// Maximum bytes of memory for whole messages, compression and decompression together.
    pub memory_bytes: u64,
    /// Maximum number of interrupted uploads that are kept for their clients to resume.
    pub broken_uploads: usize,
    /// Maximum bytes of interrupted uploads on the disk.
    pub broken_upload_bytes: u64,
    /// How long interrupted uploads are kept.
    pub broken_upload_keep: Duration,
    /// Maximum pause of a client in the middle of a stream that it sends.
    pub pause_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch_bytes_max: BATCH_BYTES_MAX,
            message_bytes_max: 32 << 20,
            memory_bytes: 160 << 20,
            broken_uploads: 256,
            broken_upload_bytes: 4 << 30,
            broken_upload_keep: Duration::from_secs(300),
            pause_max: Duration::from_secs(120),
        }
    }
}
