//! Configuration and interfaces of the services.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use cas::Cas;
use futures::{future::BoxFuture, stream::BoxStream};
use tonic::Status;

use crate::{budget::Budget, capabilities::BATCH_BYTES_MAX, stream::Uploads};

/// The store, instances and limits that the services use.
#[derive(Clone)]
pub struct BlobApi {
    /// The store that is served.
    pub cas: Cas,
    pub instances: Arc<dyn Instances>,
    pub limits: Limits,
    /// Whether this endpoint also executes actions; announced in the capabilities.
    pub executes: bool,
    /// Reader of log streams and of live action output, if there is one.
    pub live: Option<Arc<dyn LiveRead>>,
    /// Writer of log streams, if there is one.
    pub log_writes: Option<Arc<dyn LogWrite>>,
}

impl fmt::Debug for BlobApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlobApi").field("limits", &self.limits).finish_non_exhaustive()
    }
}

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
    pub broken_upload_keep: std::time::Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch_bytes_max: BATCH_BYTES_MAX,
            message_bytes_max: 32 << 20,
            memory_bytes: 160 << 20,
            broken_uploads: 256,
            broken_upload_bytes: 4 << 30,
            broken_upload_keep: std::time::Duration::from_secs(300),
        }
    }
}

/// Settings of a served instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    /// Whether clients of the instance may write its action cache.
    pub update_actions: bool,
}

/// The set of served instances.
pub trait Instances: Send + Sync + 'static {
    /// Returns the instance of this name, if it is served. The name is well-formed.
    fn find(&self, name: &str) -> Option<Instance>;
}

/// Serves every instance name.
#[derive(Debug, Clone, Copy)]
pub struct AnyInstance(pub Instance);

impl Instances for AnyInstance {
    fn find(&self, _: &str) -> Option<Instance> {
        Some(self.0)
    }
}

/// The bytes of a log as they arrive.
pub type LogStream = BoxStream<'static, Result<Bytes, Status>>;

/// Reads log streams: of running actions, and of clients.
pub trait LiveRead: Send + Sync + 'static {
    /// Reads the stream `id` of `parent` from `offset` on, until it is complete or `limit` bytes are read.
    /// `NOT_FOUND` for an unknown stream.
    fn read<'a>(
        &'a self,
        parent: &'a str,
        id: &'a str,
        offset: u64,
        limit: Option<u64>,
    ) -> BoxFuture<'a, Result<LogStream, Status>>;
}

/// A piece of a log stream that a client writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogPiece {
    Data(Bytes),
    /// The stream is complete.
    Finish,
}

/// Progress of a log stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogProgress {
    /// Number of bytes written.
    pub committed: u64,
    /// Whether the stream is complete and accepts no more bytes.
    pub complete: bool,
}

/// Writes log streams of clients.
pub trait LogWrite: Send + Sync + 'static {
    /// Appends `pieces` from `offset` on to the stream `id` of `parent`; `token` authorises the write. Returns when
    /// the pieces end or contain [`LogPiece::Finish`].
    fn write<'a>(
        &'a self,
        parent: &'a str,
        id: &'a str,
        token: &'a str,
        offset: u64,
        pieces: BoxStream<'static, Result<LogPiece, Status>>,
    ) -> BoxFuture<'a, Result<LogProgress, Status>>;

    /// Returns the progress of a log stream.
    fn progress<'a>(
        &'a self,
        parent: &'a str,
        id: &'a str,
        token: &'a str,
    ) -> BoxFuture<'a, Result<LogProgress, Status>>;
}

/// State that all services of one API share.
pub(crate) struct Shared {
    pub(crate) api: BlobApi,
    pub(crate) budget: Arc<Budget>,
    pub(crate) uploads: Arc<Uploads>,
}

impl Shared {
    pub(crate) fn new(api: BlobApi) -> Arc<Self> {
        let limits = api.limits;
        Arc::new(Self {
            api,
            budget: Arc::new(Budget::new(limits.memory_bytes)),
            uploads: Arc::new(Uploads::new(limits)),
        })
    }

    pub(crate) fn cas(&self) -> &Cas {
        &self.api.cas
    }

    /// Returns the instance that a request names.
    pub(crate) fn instance(&self, name: &str) -> Result<Instance, Status> {
        reapi::instance::check(name)?;
        self.api.instances.find(name).ok_or_else(|| {
            Status::invalid_argument(format!("unknown instance {name:?}; check the instance name"))
        })
    }
}
