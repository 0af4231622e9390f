//! Updates a folder that an earlier build used to the content of a source: unchanged files stay untouched, and files
//! that the build made stay too.
//!
//! Build tools compare times: an unchanged file keeps its time; a changed file gets the current time, because its
//! time in the source may be older than the results built from its predecessor.

mod choice;
mod content;
mod manifest;

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::SystemTime,
};

use content::{copy, is_same};
use manifest::{Entry, Kind, Stamp};

pub(crate) use choice::Choice;
pub(crate) use manifest::Manifest;

/// How a file is brought from the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferMode {
    /// The source stays unchanged.
    Copy,
    /// The source is not needed afterwards. Its times mean nothing: the content decides.
    Move,
}

/// Work done by a sync.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) changed: u64,
    pub(crate) removed: u64,
}

/// Progress of a sync, read while it runs.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Number of entries that are up to date.
    pub(crate) files: AtomicU64,
    /// Number of all entries, once they are counted.
    pub(crate) files_total: AtomicU64,
    /// Number of bytes copied so far.
    pub(crate) bytes: AtomicU64,
}

/// A sync to run.
#[derive(Debug, Clone)]
pub(crate) struct Sync {
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
    /// Which entries of the source to bring.
    pub(crate) choice: Choice,
    /// File that the list of brought entries is written to, if a later build needs it.
    pub(crate) manifest: Option<PathBuf>,
    pub(crate) mode: TransferMode,
    /// Whether the target is empty: then files keep the times of the source.
    pub(crate) fresh: bool,
    pub(crate) progress: Arc<Progress>,
}

impl Sync {
    /// Runs the sync unless `cancelled` is set. After a failure the target is unusable.
    pub(crate) fn run(&self, cancelled: &AtomicBool) -> io::Result<Done> {
        let before = match &self.manifest {
            Some(file) if !self.fresh => Manifest::load(file)?,
            Some(_) | None => Manifest::default(),
        };
        let found = self.choice.scan(&self.source, &self.target, cancelled)?;
        self.progress.files_total.store(found.len() as u64, Ordering::Relaxed);
        let mut work = Work { sync: self, before: &before, cancelled, done: Done::default() };
        work.remove_stale(&found)?;
        let mut now = BTreeMap::new();
        for (path, entry) in found {
            check(cancelled)?;
            let entry = work.bring(&path, entry)?;
            now.insert(path, entry);
            self.progress.files.fetch_add(1, Ordering::Relaxed);
        }
        // Done last, and children first: the folder's mode may forbid writing.
        for (path, _) in now.iter().rev().filter(|(_, entry)| entry.kind == Kind::Folder) {
            if let Ok(meta) = fs::symlink_metadata(self.source.join(path)) {
                adopt_rights(&self.target.join(path), &meta)?;
            }
        }
        let done = work.done;
        if let Some(file) = &self.manifest {
            Manifest(now).save(file)?;
        }
        Ok(done)
    }
}

fn check(cancelled: &AtomicBool) -> io::Result<()> {
    if cancelled.load(Ordering::Relaxed) {
        return Err(io::Error::new(io::ErrorKind::Interrupted, "the build was stopped"));
    }
    Ok(())
}

struct Work<'a> {
    sync: &'a Sync,
    before: &'a Manifest,
    cancelled: &'a AtomicBool,
    done: Done,
}

impl Work<'_> {
    /// Removes entries that came from the source but no longer exist there; children before parents.
    fn remove_stale(&mut self, found: &BTreeMap<PathBuf, Entry>) -> io::Result<()> {
        for (path, entry) in self.before.0.iter().rev().filter(|(path, _)| !found.contains_key(*path)) {
            check(self.cancelled)?;
            let target = self.sync.target.join(path);
            // The build may have replaced a folder with a link: the files behind it are not ours.
            if !has_real_parents(&self.sync.target, path) {
                continue;
            }
            let removed = match (entry.kind, fs::symlink_metadata(&target)) {
                (_, Err(_)) => Ok(()),
                // A folder that contains files of the build stays.
                (Kind::Folder, Ok(meta)) if meta.is_dir() => fs::remove_dir(&target).or(Ok(())),
                (_, Ok(meta)) if meta.is_dir() => Ok(()),
                (_, Ok(_)) => {
                    self.done.removed += 1;
                    fs::remove_file(&target)
                }
            };
            removed?;
        }
        Ok(())
    }

    /// Brings one entry of the target to its state in the source; returns what to record about it.
    fn bring(&mut self, path: &Path, mut entry: Entry) -> io::Result<Entry> {
        let (source, target) = (self.sync.source.join(path), self.sync.target.join(path));
        let meta = match fs::symlink_metadata(&source) {
            Ok(meta) if Kind::of(&meta) == entry.kind => meta,
            // Removed or replaced during the scan: the next sync will notice.
            Ok(_) | Err(_) => return Ok(Entry { source: None, target: None, ..entry }),
        };
        let there = fs::symlink_metadata(&target).ok();
        match entry.kind {
            Kind::Folder => {
                folder(&target, there.as_ref())?;
                return Ok(entry);
            }
            Kind::Link => {
                let wanted = fs::read_link(&source)?;
                if fs::read_link(&target).ok().as_ref() != Some(&wanted) {
                    clear(&target, there.as_ref())?;
                    std::os::unix::fs::symlink(&wanted, &target)?;
                    self.done.changed += 1;
                }
                return Ok(entry);
            }
            Kind::File => {
                let known = self.before.0.get(path);
                if known.is_none_or(|known| !known.is_unchanged(&entry, there.as_ref()))
                    && !is_same(&source, &meta, &target, there.as_ref(), self.cancelled)?
                {
                    clear(&target, there.as_ref())?;
                    self.fetch(&source, &meta, &target)?;
                    self.sync.progress.bytes.fetch_add(meta.len(), Ordering::Relaxed);
                    self.done.changed += 1;
                }
            }
            // Pipes, sockets and devices are not content.
            Kind::Other => return Ok(entry),
        }
        let now = adopt_rights(&target, &meta)?;
        entry.target = Some(Stamp::now(&now));
        if self.sync.mode == TransferMode::Move {
            entry.source = None;
        }
        Ok(entry)
    }

    fn fetch(&self, source: &Path, meta: &fs::Metadata, target: &Path) -> io::Result<()> {
        match self.sync.mode {
            TransferMode::Move => fs::rename(source, target)?,
            TransferMode::Copy => {
                let modified = if self.sync.fresh { Some(meta.modified()?) } else { None };
                copy(source, target, modified, self.cancelled)?;
            }
        }
        if self.sync.mode == TransferMode::Move && !self.sync.fresh {
            // The mode may forbid writing, but the owner may set times.
            let times = fs::FileTimes::new().set_modified(SystemTime::now());
            fs::File::open(target)?.set_times(times)?;
        }
        Ok(())
    }
}

/// Whether all parents of `path` below `root` are folders, not links to folders.
fn has_real_parents(root: &Path, path: &Path) -> bool {
    let mut parents = path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
    parents.all(|parent| fs::symlink_metadata(root.join(parent)).is_ok_and(|meta| meta.is_dir()))
}

fn folder(target: &Path, there: Option<&fs::Metadata>) -> io::Result<()> {
    if there.is_some_and(fs::Metadata::is_dir) {
        return Ok(());
    }
    clear(target, there)?;
    fs::create_dir(target)
}

/// Removes the existing entry, whatever its kind.
fn clear(target: &Path, there: Option<&fs::Metadata>) -> io::Result<()> {
    match there {
        None => Ok(()),
        Some(meta) if meta.is_dir() => fs::remove_dir_all(target),
        Some(_) => fs::remove_file(target),
    }
}

/// Gives the target the owner and mode of the source; returns its metadata afterwards.
fn adopt_rights(target: &Path, meta: &fs::Metadata) -> io::Result<fs::Metadata> {
    let there = fs::symlink_metadata(target)?;
    if (there.uid(), there.gid()) != (meta.uid(), meta.gid()) {
        // Only root may change owners; other users own their copies.
        let _ = std::os::unix::fs::lchown(target, Some(meta.uid()), Some(meta.gid()));
    }
    if there.mode() != meta.mode() {
        fs::set_permissions(target, fs::Permissions::from_mode(meta.mode()))?;
    }
    fs::symlink_metadata(target)
}

#[cfg(test)]
mod tests;
