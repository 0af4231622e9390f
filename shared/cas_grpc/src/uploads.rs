//! Running uploads, and interrupted ones that wait for their clients to resume them.
//!
//! The bytes of an upload are in a temporary file of the store; this module holds only its writer. An upload belongs
//! to the stream that holds its [`UploadGuard`]; another stream of the same name can request it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cas::{Cas, CasWriter};
use futures::FutureExt as _;
use invariant::impossible;
use model::{BlobDigest, Zone};
use parking_lot::Mutex;
use telemetry::metrics::{Counter, count};
use tokio::{
    sync::{Notify, OwnedMutexGuard},
    time::Instant,
};
use tonic::Status;

use crate::{
    fault::{bounded, busy},
    limits::Limits,
};

/// Maximum time for a stream to hand over its upload to another stream that requests it.
const HAND_OVER: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct UploadKey {
    /// An upload of one trust zone is unknown to the others.
    zone: Option<Zone>,
    instance: String,
    uuid: String,
    digest: BlobDigest,
}

/// One upload and its state.
#[derive(Debug, Default)]
struct Upload {
    /// Bytes of the blob that the store has accepted.
    committed: AtomicU64,
    /// Notified when another stream requests the upload.
    wanted: Notify,
    writer: Arc<tokio::sync::Mutex<Option<CasWriter>>>,
}

/// All uploads of a server.
#[derive(Debug)]
pub(crate) struct Uploads {
    limits: Limits,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    uploads: HashMap<UploadKey, Arc<Upload>>,
    /// Interrupted uploads, oldest first. Some may be resumed or gone by now.
    broken: VecDeque<InterruptedUpload>,
    broken_bytes: u64,
    /// Whether a task waits for the oldest upload to expire.
    swept: bool,
}

#[derive(Debug)]
struct InterruptedUpload {
    since: Instant,
    key: UploadKey,
    upload: Weak<Upload>,
    bytes: u64,
}

impl Uploads {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, table: Mutex::default() }
    }

    /// Returns the accepted bytes of an upload; 0 if it is unknown.
    pub(crate) fn committed(
        &self,
        zone: Option<&Zone>,
        instance: &str,
        uuid: &str,
        digest: &BlobDigest,
    ) -> u64 {
        let key =
            UploadKey { zone: zone.cloned(), instance: instance.into(), uuid: uuid.into(), digest: *digest };
        self.table.lock().uploads.get(&key).map_or(0, |upload| upload.committed.load(Ordering::Relaxed))
    }

    /// Begins an upload, or continues one that has `offset` bytes.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        cas: &Cas,
        instance: &str,
        uuid: &str,
        digest: &BlobDigest,
        offset: u64,
    ) -> Result<UploadGuard, Status> {
        let key = UploadKey {
            zone: cas.zone().cloned(),
            instance: instance.into(),
            uuid: uuid.into(),
            digest: *digest,
        };
        if offset > 0 {
            return self.resume(key, offset).await;
        }
        let writer = bounded(cas.writer(*digest)).await?;
        let upload = Arc::new(Upload::default());
        let mut guard = self.lock(key.clone(), &upload).await?;
        guard.put(writer);
        // A running upload of the same name continues on its own; it can no longer be resumed.
        self.table.lock().uploads.insert(key, upload);
        Ok(guard)
    }

    async fn resume(self: &Arc<Self>, key: UploadKey, offset: u64) -> Result<UploadGuard, Status> {
        let upload = self.table.lock().uploads.get(&key).cloned();
        let Some(upload) = upload else {
            return Err(Status::invalid_argument(format!(
                "write_offset {offset}: unknown upload; restart at offset 0"
            )));
        };
        upload.wanted.notify_one();
        let mut guard = self.lock(key, &upload).await?;
        // If no other stream had the upload, the notification is still pending: consume it.
        let _ = guard.wanted().now_or_never();
        let committed = guard.writer().map(|writer| writer.written());
        if committed != Some(offset) {
            // Without a writer the upload has ended, and nothing of it is kept.
            let committed = committed.unwrap_or_default();
            return Err(Status::invalid_argument(format!(
                "write_offset {offset}: {committed} bytes committed; resume at that offset"
            )));
        }
        count(Counter::CasUploadsResumed, &[], 1);
        Ok(guard)
    }

    async fn lock(self: &Arc<Self>, key: UploadKey, upload: &Arc<Upload>) -> Result<UploadGuard, Status> {
        let lock = Arc::clone(&upload.writer).lock_owned();
        let writer = tokio::time::timeout(HAND_OVER, lock).await;
        let writer = writer.map_err(|_| busy("another stream is writing this upload; try again"))?;
        Ok(UploadGuard { uploads: Arc::clone(self), key, upload: Arc::clone(upload), writer: Some(writer) })
    }

    /// Keeps an interrupted upload, as long as the limits permit.
    fn keep(self: &Arc<Self>, key: &UploadKey, upload: &Arc<Upload>) {
        let mut table = self.table.lock();
        if !table.uploads.get(key).is_some_and(|known| Arc::ptr_eq(known, upload)) {
            return;
        }
        let bytes = upload.committed.load(Ordering::Relaxed);
        if bytes == 0 {
            table.uploads.remove(key);
            return;
        }
        let broken = InterruptedUpload {
            since: Instant::now(),
            key: key.clone(),
            upload: Arc::downgrade(upload),
            bytes,
        };
        table.broken.push_back(broken);
        table.broken_bytes += bytes;
        while table.broken.len() > self.limits.broken_uploads
            || table.broken_bytes > self.limits.broken_upload_bytes
        {
            table.drop_oldest();
        }
        if !table.swept
            && !table.broken.is_empty()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            table.swept = true;
            drop(table);
            runtime.spawn(Arc::clone(self).sweep());
        }
    }

    /// Drops expired uploads, until none is left.
    async fn sweep(self: Arc<Self>) {
        while let Some(time) = self.drop_old() {
            tokio::time::sleep_until(time).await;
        }
    }

    /// Drops expired uploads. Returns when the next one expires.
    fn drop_old(&self) -> Option<Instant> {
        let mut table = self.table.lock();
        while let Some(oldest) = table.broken.front() {
            let time = oldest.since + self.limits.broken_upload_keep;
            if time > Instant::now() {
                return Some(time);
            }
            table.drop_oldest();
        }
        table.swept = false;
        None
    }
}

impl Table {
    /// Forgets the oldest interrupted upload, unless it was resumed since: then it is either running, or in the
    /// queue a second time.
    fn drop_oldest(&mut self) {
        let Some(oldest) = self.broken.pop_front() else {
            impossible!("no interrupted upload is left to drop");
            return;
        };
        self.broken_bytes = self.broken_bytes.saturating_sub(oldest.bytes);
        let again = |broken: &InterruptedUpload| Weak::ptr_eq(&broken.upload, &oldest.upload);
        let Some(upload) = oldest.upload.upgrade() else { return };
        let idle = upload.writer.try_lock().is_ok();
        let known = self.uploads.get(&oldest.key).is_some_and(|known| Arc::ptr_eq(known, &upload));
        if known && idle && !self.broken.iter().any(again) {
            self.uploads.remove(&oldest.key);
        }
    }
}

/// The right to write an upload. The upload can be resumed when this is dropped.
#[derive(Debug)]
pub(crate) struct UploadGuard {
    uploads: Arc<Uploads>,
    key: UploadKey,
    upload: Arc<Upload>,
    /// Present until the guard is dropped.
    writer: Option<OwnedMutexGuard<Option<CasWriter>>>,
}

impl UploadGuard {
    fn put(&mut self, writer: CasWriter) {
        match &mut self.writer {
            Some(place) => **place = Some(writer),
            None => impossible!("a stream has no lock on the upload that it begins"),
        }
    }

    fn writer(&mut self) -> Option<&mut CasWriter> {
        self.writer.as_mut()?.as_mut()
    }

    /// Bytes accepted so far.
    pub(crate) fn written(&self) -> u64 {
        self.upload.committed.load(Ordering::Relaxed)
    }

    /// Accepts the next bytes of the blob. After an error the upload cannot be resumed.
    pub(crate) async fn write(&mut self, piece: bytes::Bytes) -> Result<(), Status> {
        let Some(writer) = self.writer() else { return Err(discarded()) };
        let written = bounded(writer.write(piece)).await;
        let committed = writer.written();
        if written.is_ok() {
            self.upload.committed.store(committed, Ordering::Relaxed);
        } else {
            self.discard();
        }
        written
    }

    /// Writes the received bytes to the disk and frees their memory.
    pub(crate) async fn flush(&mut self) -> Result<(), Status> {
        let Some(writer) = self.writer() else { return Err(discarded()) };
        let flushed = bounded(writer.flush()).await;
        if flushed.is_err() {
            self.discard();
        }
        flushed
    }

    /// Verifies the blob and makes it visible.
    pub(crate) async fn finish(mut self) -> Result<(), Status> {
        let writer = self.discard().ok_or_else(discarded)?;
        bounded(writer.finish()).await
    }

    /// Removes the upload from the table.
    pub(crate) fn discard(&mut self) -> Option<CasWriter> {
        self.upload.committed.store(0, Ordering::Relaxed);
        let mut table = self.uploads.table.lock();
        if table.uploads.get(&self.key).is_some_and(|known| Arc::ptr_eq(known, &self.upload)) {
            table.uploads.remove(&self.key);
        }
        drop(table);
        self.writer.as_mut()?.take()
    }

    /// Resolves when another stream requests the upload.
    pub(crate) fn wanted(&self) -> impl Future<Output = ()> + Send + 'static {
        let upload = Arc::clone(&self.upload);
        async move { upload.wanted.notified().await }
    }
}

fn discarded() -> Status {
    Status::aborted("upload discarded; restart at offset 0")
}

impl Drop for UploadGuard {
    fn drop(&mut self) {
        let broke_off = self.writer().is_some();
        self.writer = None;
        if broke_off {
            self.uploads.keep(&self.key, &self.upload);
        }
    }
}
