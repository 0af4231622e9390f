//! Blobs that records name: each has a second name in the folder of the day until which it is kept, and the evictor
//! does not touch files with a second name. When that day has passed, the folder is removed, and with it the blobs
//! that nothing else needs.

use std::{
    collections::HashSet,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use invariant::Present as _;
use model::{BlobDigest, DigestFunction};
use nix::errno::Errno;

use super::{Evictor, EvictorInner, Pass, present};
use crate::{
    CasError, UsageSink as _,
    empty_blob::is_empty,
    layout::{Entry, Kind, Layout},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Evictor {
    /// Keeps blobs at least until `until`, however short space is. Returns those that the store does not have. A farm
    /// behind the store decides itself what it keeps: then this does nothing.
    pub async fn keep(
        &self,
        digests: Vec<BlobDigest>,
        until: SystemTime,
    ) -> Result<Vec<BlobDigest>, CasError> {
        if self.inner.cas.is_remote() {
            return Ok(Vec::new());
        }
        if let Some(objects) = self.inner.cas.objects() {
            return objects.keep(digests).await;
        }
        let evictor = self.inner.clone();
        let kept = tokio::task::spawn_blocking(move || evictor.keep(&digests, until));
        kept.await.map_err(|_| CasError::Stopping)?
    }
}

impl Evictor {
    /// Ends the keeping of the blobs whose day has passed at `now`, by the clock that `until` was computed with, and
    /// deletes those that nothing else keeps and no client relied on recently. Returns what it did.
    pub async fn release(&self, now: SystemTime) -> Result<Pass, CasError> {
        let evictor = self.inner.clone();
        let released = tokio::task::spawn_blocking(move || evictor.release(now));
        released.await.map_err(|_| CasError::Stopping)?
    }
}

impl EvictorInner {
    fn keep(&self, digests: &[BlobDigest], until: SystemTime) -> Result<Vec<BlobDigest>, CasError> {
        // No file is evicted meanwhile.
        let _queue = self.queue.lock();
        let disk = &self.cas.inner.disk;
        let day = day_of(until) + 1;
        let mut missing = Vec::new();
        for digest in digests.iter().filter(|digest| !is_empty(digest)) {
            let entry = Entry::blob(*digest);
            let (path, kept) = (disk.layout.path(&entry), disk.layout.kept_path(day, &entry));
            if !disk.touch(&entry)? {
                missing.push(*digest);
                continue;
            }
            match link(&path, &kept) {
                Ok(Some(meta)) if meta.nlink() == 2 => self.meter.freed(bytes_of(&meta)),
                Ok(Some(_) | None) => {}
                // A file system limits the names of a file: one with this many is in use everywhere.
                Err(error) if error.raw_os_error() == Some(Errno::EMLINK as i32) => {
                    tracing::warn!(%digest, "cannot keep a blob: its file has too many names");
                }
                Err(source) => return Err(CasError::disk("keeping", &path, source)),
            }
        }
        Ok(missing)
    }

    fn release(&self, now: SystemTime) -> Result<Pass, CasError> {
        let _queue = self.queue.lock();
        let mut pass = Pass::default();
        let today = day_of(now);
        for (day, folder) in days(&self.cas.inner.disk.layout) {
            if day >= today {
                continue;
            }
            for (entry, link) in links(&folder) {
                self.release_one(&entry, &link, &mut pass)?;
            }
            fs::remove_dir_all(&folder).map_err(|source| CasError::disk("removing", &folder, source))?;
        }
        Ok(pass)
    }

    fn release_one(&self, entry: &Entry, link: &Path, pass: &mut Pass) -> Result<(), CasError> {
        let failed = |source| CasError::disk("releasing", link, source);
        let Some(meta) = present(fs::symlink_metadata(link)).map_err(failed)? else { return Ok(()) };
        present(fs::remove_file(link)).map_err(failed)?;
        if meta.nlink() == 2 {
            // From now on it is a blob like those that no record names.
            self.meter.used(bytes_of(&meta));
            let freed = self.evict(entry, SystemTime::now() - self.physical_keep(), pass)?;
            self.meter.freed(freed);
        }
        Ok(())
    }
}

/// Days since 1970-01-01.
fn day_of(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() / DAY.as_secs()
}

fn bytes_of(meta: &Metadata) -> u64 {
    meta.blocks() * 512
}

/// Gives a file a second name. Returns its metadata; none if it had that name already.
fn link(path: &Path, kept: &Path) -> io::Result<Option<Metadata>> {
    let linked = match fs::hard_link(path, kept) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(kept.parent().present_or(kept, "the folder of a kept blob"))?;
            fs::hard_link(path, kept)
        }
        outcome => outcome,
    };
    match linked {
        Ok(()) => fs::symlink_metadata(kept).map(Some),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

/// The folders of days.
fn days(layout: &Layout) -> impl Iterator<Item = (u64, PathBuf)> {
    let folders = fs::read_dir(layout.kept()).into_iter().flatten().flatten();
    folders.filter_map(|folder| Some((folder.file_name().to_str()?.parse().ok()?, folder.path())))
}

/// The blobs with a name in the folder of a day.
fn links(day: &Path) -> impl Iterator<Item = (Entry, PathBuf)> + use<> {
    let root = day.join(Kind::Blob.folder());
    DigestFunction::ALL.into_iter().flat_map(move |function| {
        let shards = fs::read_dir(root.join(function.as_str())).into_iter().flatten().flatten();
        let files = shards.filter_map(|shard| fs::read_dir(shard.path()).ok()).flatten().flatten();
        files.filter_map(move |file| {
            Some((Entry::parse(Kind::Blob, function, file.file_name().to_str()?)?, file.path()))
        })
    })
}

/// Inodes of all kept blobs.
pub(super) fn kept_inodes(layout: &Layout) -> HashSet<u64> {
    let inode = |(_, path): (Entry, PathBuf)| fs::symlink_metadata(path).ok().map(|meta| meta.ino());
    days(layout).flat_map(|(_, folder)| links(&folder)).filter_map(inode).collect()
}
