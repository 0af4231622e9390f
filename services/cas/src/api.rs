//! What the services are given.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use cas::Cas;
use futures::{future::BoxFuture, stream::BoxStream};
use tonic::Status;

use crate::{budget::Budget, capabilities::BATCH_BYTES_MAX, stream::Uploads};

/// What the services are given.
#[derive(Clone)]
pub struct BlobApi {
    /// The store.
    pub cas: Cas,
    /// Which instances there are.
    pub instances: Arc<dyn Instances>,
    /// How much is taken.
    pub limits: Limits,
    /// Whether actions are executed here too, for the capabilities.
    pub executes: bool,
    /// Who reads log streams and the live output of actions, if anyone does.
    pub live: Option<Arc<dyn LiveRead>>,
    /// Who writes log streams, if anyone does.
    pub log_writes: Option<Arc<dyn LogWrite>>,
}

impl fmt::Debug for BlobApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlobApi").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// How much is taken at a time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of the blobs of a batch.
    pub batch_bytes_max: u64,
    /// Bytes of a message that comes in.
    pub message_bytes_max: usize,
    /// Bytes of memory that whole messages, and what is compressed or decompressed, take together.
    pub memory_bytes: u64,
    /// Uploads that broke off and are kept for their clients to resume.
    pub broken_uploads: usize,
    /// Bytes of them on the disk.
    pub broken_upload_bytes: u64,
    /// How long they are kept.
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

/// An instance that is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    /// Whether its clients may write the action cache.
    pub update_actions: bool,
}

/// Which instances are served.
pub trait Instances: Send + Sync + 'static {
    /// The instance of this name, if it is served. The name is well-formed.
    fn find(&self, name: &str) -> Option<Instance>;
}

/// Every name is an instance.
#[derive(Debug, Clone, Copy)]
pub struct AnyInstance(pub Instance);

impl Instances for AnyInstance {
    fn find(&self, _: &str) -> Option<Instance> {
        Some(self.0)
    }
}

/// Bytes of a log as they come.
pub type LogStream = BoxStream<'static, Result<Bytes, Status>>;

/// Reads log streams: of actions that run, and of clients.
pub trait LiveRead: Send + Sync + 'static {
    /// The stream `id` of `parent` from `offset` on, until it is complete or `limit` bytes are read. `NOT_FOUND` for
    /// one that is not known.
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
    /// The next bytes.
    Data(Bytes),
    /// There are no more, ever.
    Finish,
}

/// How much of a log stream is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogProgress {
    /// Bytes.
    pub committed: u64,
    /// Whether no more may come.
    pub complete: bool,
}

/// Writes log streams.
pub trait LogWrite: Send + Sync + 'static {
    /// Appends `pieces` from `offset` on to the stream `id` of `parent`, which `token` gives the right to write.
    /// Returns when the pieces end or say that they are finished.
    fn write<'a>(
        &'a self,
        parent: &'a str,
        id: &'a str,
        token: &'a str,
        offset: u64,
        pieces: BoxStream<'static, Result<LogPiece, Status>>,
    ) -> BoxFuture<'a, Result<LogProgress, Status>>;

    /// How much of it is written.
    fn progress<'a>(
        &'a self,
        parent: &'a str,
        id: &'a str,
        token: &'a str,
    ) -> BoxFuture<'a, Result<LogProgress, Status>>;
}

/// What all services of one API share.
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

    /// The instance that a request names.
    pub(crate) fn instance(&self, name: &str) -> Result<Instance, Status> {
        reapi::instance::check(name)?;
        self.api.instances.find(name).ok_or_else(|| {
            Status::invalid_argument(format!("instance {name:?} is not served here; check the instance name"))
        })
    }
}
