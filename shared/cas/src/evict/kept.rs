//! Blobs that records name: each has a second name in the folder of the day until which it is kept, and the evictor
//! does not touch files with a second name. When that day has passed, the folder is removed, and with it the blobs
//! that nothing else needs.

use std::{
    collections::HashSet,
    fs::{self, Metadata},
    io,
    os::unix::fs::{DirEntryExt as _, MetadataExt as _},
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
    /// Keeps each blob until its time and for at least 24 hours more, however short space is. Returns those that the
    /// store does not have. For a store without a backing; see [`Cas::keep_objects`](crate::Cas::keep_objects).
    pub async fn keep(&self, named: Vec<(BlobDigest, SystemTime)>) -> Result<Vec<BlobDigest>, CasError> {
        let evictor = self.inner.clone();
        let kept = tokio::task::spawn_blocking(move || evictor.keep(&named));
        kept.await.map_err(|_| CasError::Stopping)?
    }

    /// Ends the keeping of the blobs whose day has passed at `now`, by the clock that its time was computed with, or is
    /// after that of `latest`. Deletes those that nothing else keeps and no client relied on recently.
    pub async fn release(&self, now: SystemTime, latest: Option<SystemTime>) -> Result<Pass, CasError> {
        let evictor = self.inner.clone();
        let released = tokio::task::spawn_blocking(move || evictor.release(now, latest));
        released.await.map_err(|_| CasError::Stopping)
    }
}

impl EvictorInner {
    fn keep(&self, named: &[(BlobDigest, SystemTime)]) -> Result<Vec<BlobDigest>, CasError> {
        // No file is evicted meanwhile.
        let _queue = self.queue.lock();
        let layout = self.local.layout();
        let mut missing = Vec::new();
        for (digest, until) in named.iter().filter(|(digest, _)| !is_empty(digest)) {
            let entry = Entry::blob(*digest);
            let (path, kept) = (layout.path(&entry), layout.kept_path(kept_until(*until), &entry));
            if !self.local.touch(&entry)? {
                missing.push(*digest);
                continue;
            }
            match link(&path, &kept) {
                Ok(Some(meta)) if meta.nlink() == 2 => self.meter.freed(bytes_of(&meta)),
                Ok(Some(_) | None) => {}
                // Files in use by many actions are not evicted; the next read of the record tries again.
                Err(error) if error.raw_os_error() == Some(Errno::EMLINK as i32) => {
                    tracing::warn!(%digest, "cannot keep a blob: its file has too many names");
                }
                Err(source) => return Err(CasError::disk("keeping", &path, source)),
            }
        }
        Ok(missing)
    }

    fn release(&self, now: SystemTime, latest: Option<SystemTime>) -> Pass {
        let _queue = self.queue.lock();
        let mut pass = Pass::default();
        let today = day_of(now);
        let last = latest.map_or(u64::MAX, kept_until);
        let due = days(self.local.layout()).filter(|(day, _)| !(today..=last).contains(day));
        for (_, folder) in due {
            if let Err(error) = self.release_day(&folder, &mut pass) {
                if self.stuck_days.lock().insert(folder) {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "cannot delete what is not kept any more"
                    );
                }
            } else {
                self.stuck_days.lock().remove(&folder);
            }
        }
        pass
    }

    fn release_day(&self, folder: &Path, pass: &mut Pass) -> Result<(), CasError> {
        let failed = |source| CasError::disk("removing", folder, source);
        if !fs::symlink_metadata(folder).map_err(failed)?.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        let mut outcome = Ok(());
        for name in links(folder) {
            // The first failure is returned after the other blobs are released.
            outcome = outcome.and(self.release_one(&name.entry, &name.path, pass));
        }
        outcome?;
        fs::remove_dir_all(folder).map_err(failed)
    }

    fn release_one(&self, entry: &Entry, link: &Path, pass: &mut Pass) -> Result<(), CasError> {
        let failed = |source| CasError::disk("releasing", link, source);
        let Some(meta) = present(fs::symlink_metadata(link)).map_err(failed)? else { return Ok(()) };
        present(fs::remove_file(link)).map_err(failed)?;
        if meta.nlink() == 2 {
            // From now on it is a blob like those that no record names.
            self.meter.used(bytes_of(&meta));
            let freed = self.evict(entry, SystemTime::now() - self.age_min, pass)?;
            self.meter.freed(freed);
        }
        Ok(())
    }
}

/// Number of whole days since 1970-01-01.
fn day_of(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() / DAY.as_secs()
}

/// The day until whose end a blob is kept so that it is kept for at least 24 hours after `time`.
fn kept_until(time: SystemTime) -> u64 {
    day_of(time) + 1
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
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if fs::symlink_metadata(kept)?.ino() == fs::symlink_metadata(path)?.ino() {
                return Ok(None);
            }
            // The blob was damaged and stored again.
            fs::remove_file(kept)?;
            fs::hard_link(path, kept)?;
            fs::symlink_metadata(kept).map(Some)
        }
        Err(error) => Err(error),
    }
}

/// The folders of days.
fn days(layout: &Layout) -> impl Iterator<Item = (u64, PathBuf)> {
    let folders = fs::read_dir(layout.kept()).into_iter().flatten().flatten();
    folders.filter_map(|folder| Some((folder.file_name().to_str()?.parse().ok()?, folder.path())))
}

/// A name of a kept blob.
struct KeptName {
    entry: Entry,
    path: PathBuf,
    inode: u64,
}

/// The names in the folder of a day.
fn links(day: &Path) -> impl Iterator<Item = KeptName> + use<> {
    let root = day.join(Kind::Blob.folder());
    DigestFunction::ALL.into_iter().flat_map(move |function| {
        let shards = fs::read_dir(root.join(function.as_str())).into_iter().flatten().flatten();
        let files = shards.filter_map(|shard| fs::read_dir(shard.path()).ok()).flatten().flatten();
        files.filter_map(move |file| {
            let entry = Entry::parse(Kind::Blob, function, file.file_name().to_str()?)?;
            Some(KeptName { entry, path: file.path(), inode: file.ino() })
        })
    })
}

/// Inodes of all kept blobs.
pub(super) fn kept_inodes(layout: &Layout) -> HashSet<u64> {
    days(layout).flat_map(|(_, folder)| links(&folder)).map(|link| link.inode).collect()
}
