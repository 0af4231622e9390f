//! How a store is set up.

use std::{path::PathBuf, time::Duration};

/// How a store is set up.
#[derive(Debug, Clone)]
pub struct CasConfig {
    /// The folder of the local tier; everything of it is on one file system.
    pub root: PathBuf,
    /// The object store behind the local tier, as a URL: `s3://BUCKET/PREFIX`, `gs://…`, `az://…` (all three with
    /// the cargo feature `cloud`), `file:///PATH`, `memory:///`. Or the store of a farm, over the Remote Execution API:
    /// `grpc://HOST:PORT`, `grpc://HOST:PORT/INSTANCE`. None: the local tier is all there is.
    pub backing: Option<String>,
    /// Bytes of small blobs kept in memory.
    pub memory_bytes: u64,
    /// Up to this size a blob is small.
    pub memory_blob_bytes_max: u64,
    /// Digests of which is remembered when somebody last relied on them; each takes about 130 bytes.
    pub known_max: usize,
    /// Bytes of what is known about directories and action results, each.
    pub memo_bytes: u64,
    /// The largest blob that is taken.
    pub blob_bytes_max: u64,
    /// How long a blob is kept after somebody was told that it is there, while there is room.
    pub keep: Duration,
    /// How long at least, however short room is.
    pub keep_min: Duration,
    /// Bytes buffered by all reads and writes together.
    pub in_flight_bytes: u32,
    /// Sync each file and its folder to the disk before it is visible. Without it a power cut may lose or cut short
    /// what was written in the last half minute; what was cut short is found by its length and is missing then.
    pub fsync: bool,
}

impl CasConfig {
    /// The defaults, for a store in the folder `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            backing: None,
            memory_bytes: 64 << 20,
            memory_blob_bytes_max: 64 << 10,
            known_max: 400_000,
            memo_bytes: 32 << 20,
            blob_bytes_max: 16 << 30,
            keep: Duration::from_secs(3 * 3600),
            keep_min: Duration::from_secs(300),
            in_flight_bytes: 64 << 20,
            fsync: false,
        }
    }
    /// How long a blob is kept for certain after somebody was told that it is there.
    pub fn floor(&self) -> Duration {
        self.keep_min.min(self.keep)
    }
}
