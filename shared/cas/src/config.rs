//! Configuration of a store.

use std::{path::PathBuf, time::Duration};

use model::ZoneLimits;

/// Configuration of a store.
#[derive(Debug, Clone)]
pub struct CasConfig {
    /// Folder of the local tier; it must lie on one file system.
    pub root: PathBuf,
    /// The object store behind the local tier, as a URL: `s3://BUCKET/PREFIX`, `gs://…`, `az://…`,
    /// `file:///PATH`, `memory:///`. Or the store of a farm, over the Remote Execution API:
    /// `grpc://HOST:PORT`, `grpc://HOST:PORT/INSTANCE`. `None`: there is only the local tier.
    pub backing: Option<String>,
    /// Size in bytes of the memory cache for small blobs.
    pub memory_bytes: u64,
    /// Maximum size in bytes of a blob that counts as small.
    pub memory_blob_bytes_max: u64,
    /// Maximum number of digests whose last use is remembered; each takes about 130 bytes.
    pub known_max: usize,
    /// Size in bytes of the cache of directories, and of the cache of action results.
    pub memo_bytes: u64,
    /// Maximum size in bytes of a blob.
    pub blob_bytes_max: u64,
    /// How long a blob is kept after a caller last relied on it, while there is space.
    pub keep: Duration,
    /// How long a blob is kept at least, however short space is.
    pub keep_min: Duration,
    /// How long an object store behind the local tier has a blob after it was written or renewed. A look-up renews a
    /// blob in the second half of that time.
    pub retention: Duration,
    /// Maximum number of bytes buffered by all reads and writes together.
    pub in_flight_bytes: u32,
    /// Sync each file and its folder to the disk before the file becomes visible. Otherwise a power cut may
    /// lose or truncate what was written in the last half minute; a truncated file is recognised by its
    /// length and counts as missing.
    pub fsync: bool,
    /// How much each trust zone may have. With a farm behind the store, that one has the limits.
    pub zone_limits: ZoneLimits,
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
            retention: Duration::from_secs(30 * 24 * 3600),
            in_flight_bytes: 64 << 20,
            fsync: false,
            zone_limits: ZoneLimits::default(),
        }
    }

    /// The same for a process that uses few blobs.
    #[must_use]
    pub fn with_small_caches(self) -> Self {
        Self { memory_bytes: 1 << 20, known_max: 10_000, memo_bytes: 1 << 20, ..self }
    }

    /// How long a blob is guaranteed to be kept after a caller relied on it.
    pub fn floor(&self) -> Duration {
        self.keep_min.min(self.keep)
    }
}
