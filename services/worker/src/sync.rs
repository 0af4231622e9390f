//! Updates a folder that an earlier build used to the content of a source: unchanged files stay untouched, and files
//! that the build made stay too.
//!
//! Build tools compare times: an unchanged file keeps its time; a changed file gets the current time, because its
//! time in the source may be older than the results built from its predecessor.

mod bounds;
mod cancel;
mod choice;
mod content;
mod folder_source;
mod manifest;
mod progress;
mod source;
mod tree;
mod tree_source;

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bounds::Bounds;
use disk::{Confined, Place, Reserve};
use manifest::{Entry, Kind, Manifest, Stamp};
use source::Attributes;

pub(crate) use choice::Choice;
pub(crate) use folder_source::{FolderSource, TransferMode};
pub(crate) use progress::Progress;
pub(crate) use source::Source;
pub(crate) use tree::TreeError;
pub(crate) use tree_source::{StoreAway, TreeFetch};

/// Work done by a sync.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) changed: u64,
    pub(crate) removed: u64,
}

/// A sync to run.
#[derive(Debug, Clone)]
pub(crate) struct Sync {
    pub(crate) target: PathBuf,
    /// File that the list of brought entries is written to, if a later build needs it.
    pub(crate) manifest: Option<PathBuf>,
    /// Whether the target is empty: then files keep the times of the source.
    pub(crate) fresh: bool,
    /// Share of the disk of which half must stay free.
    pub(crate) reserve: Reserve,
    pub(crate) progress: Arc<Progress>,
}

impl Sync {
    /// Brings `target` to the content of `source` unless `cancelled` is set. After a failure the target is unusable.
    pub(crate) fn run(&self, source: &dyn Source, cancelled: &AtomicBool) -> io::Result<Done> {
        let before = match &self.manifest {
            Some(file) if !self.fresh => Manifest::load(file)?,
            Some(_) | None => Manifest::default(),
        };
        let found = source.entries(&self.target, cancelled)?;
        self.progress.files_total.store(found.len() as u64, Ordering::Relaxed);
        let bounds = Bounds::new(cancelled, &self.target, self.reserve);
        let target = Target { root: Confined::at(&self.target)?, last: None };
        let mut work = Work { sync: self, source, before: &before, target, bounds, done: Done::default() };
        work.remove_stale(&found)?;
        let mut now = BTreeMap::new();
        for (path, entry) in found {
            work.bounds.check()?;
            let entry = work.bring(&path, entry)?;
            now.insert(path, entry);
            self.progress.files.fetch_add(1, Ordering::Relaxed);
        }
        // Done last, and children first: the folder's mode may forbid writing.
        for (path, _) in now.iter().rev().filter(|(_, entry)| entry.kind == Kind::Folder) {
            if let Some(attributes) = source.attributes(path, Kind::Folder) {
                adopt_rights(&work.target.place(path)?, &attributes)?;
            }
        }
        let done = work.done;
        if let Some(file) = &self.manifest {
            Manifest(now).save(file)?;
        }
        Ok(done)
    }
}

/// The folder to bring entries to. What a build left may replace its folders by links, which are not followed.
struct Target {
    root: Confined,
    /// The folder of the last entry.
    last: Option<(PathBuf, Confined)>,
}

impl Target {
    /// The entry at `path`. Fails if one of the folders above is none.
    fn place(&mut self, path: &Path) -> io::Result<Place> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let above = path.parent().unwrap_or(Path::new(""));
        match &self.last {
            Some((last, folder)) if last == above => Ok(folder.place(name)),
            Some(_) | None => {
                let folder = self.root.folder(above)?;
                let place = folder.place(name);
                self.last = Some((above.to_owned(), folder));
                Ok(place)
            }
        }
    }
}

struct Work<'a> {
    sync: &'a Sync,
    source: &'a dyn Source,
    before: &'a Manifest,
    target: Target,
    bounds: Bounds<'a>,
    done: Done,
}

impl Work<'_> {
    /// Removes entries that came from the source but no longer exist there; children before parents.
    fn remove_stale(&mut self, found: &BTreeMap<PathBuf, Entry>) -> io::Result<()> {
        for (path, entry) in self.before.0.iter().rev().filter(|(path, _)| !found.contains_key(*path)) {
            self.bounds.check()?;
            // The build may have removed a folder, or replaced it with a link: the files behind it are not ours.
            let Ok(place) = self.target.place(path) else { continue };
            let target = place.path();
            let removed = match (entry.kind, fs::symlink_metadata(target)) {
                (_, Err(_)) => Ok(()),
                // A folder that contains files of the build stays.
                (Kind::Folder, Ok(meta)) if meta.is_dir() => fs::remove_dir(target).or(Ok(())),
                (_, Ok(meta)) if meta.is_dir() => Ok(()),
                (_, Ok(_)) => {
                    self.done.removed += 1;
                    fs::remove_file(target)
                }
            };
            removed?;
        }
        Ok(())
    }

    /// Brings one entry of the target to its state in the source; returns what to record about it.
    fn bring(&mut self, path: &Path, mut entry: Entry) -> io::Result<Entry> {
        let Some(attributes) = self.source.attributes(path, entry.kind) else {
            // Removed or replaced during the scan: the next sync will notice.
            return Ok(Entry { source: None, target: None, ..entry });
        };
        let place = self.target.place(path)?;
        let target = place.path();
        // If it exists and cannot be read, the attempt to replace it reports why.
        let there = fs::symlink_metadata(target).ok();
        if there.is_none() {
            self.bounds.creates()?;
        }
        match entry.kind {
            Kind::Folder => {
                folder(target, there.as_ref())?;
                return Ok(entry);
            }
            Kind::Link => {
                let wanted = self.source.link_target(path)?;
                if fs::read_link(target).ok().as_ref() != Some(&wanted) {
                    clear(target, there.as_ref())?;
                    std::os::unix::fs::symlink(&wanted, target)?;
                    self.done.changed += 1;
                }
                return Ok(entry);
            }
            Kind::File => {
                let known = self.before.0.get(path);
                if known.is_none_or(|known| !known.is_unchanged(&entry, there.as_ref()))
                    && !self.is_same(path, &attributes, &place, there.as_ref())?
                {
                    clear(target, there.as_ref())?;
                    self.source.fetch(path, &place, self.sync.fresh, &self.bounds)?;
                    self.sync.progress.bytes.fetch_add(attributes.size, Ordering::Relaxed);
                    self.done.changed += 1;
                }
            }
            // Pipes, sockets and devices are not content.
            Kind::Other => return Ok(entry),
        }
        let now = adopt_rights(&place, &attributes)?;
        entry.target = Some(Stamp::now(&now));
        Ok(entry)
    }

    /// Whether `target`, with metadata `there`, is a file with the content of `path`.
    fn is_same(
        &self,
        path: &Path,
        attributes: &Attributes,
        target: &Place,
        there: Option<&fs::Metadata>,
    ) -> io::Result<bool> {
        let may_be = there.is_some_and(|there| there.is_file() && there.len() == attributes.size);
        Ok(may_be && self.source.is_same(path, target, self.bounds.cancelled())?)
    }
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
        Some(meta) if meta.is_dir() => disk::remove_tree(target),
        Some(_) => fs::remove_file(target),
    }
}

/// Gives the target the owner and mode of the source; returns its metadata afterwards.
fn adopt_rights(target: &Place, attributes: &Attributes) -> io::Result<fs::Metadata> {
    let there = fs::symlink_metadata(target.path())?;
    let (uid, gid) = attributes.owner;
    if (there.uid(), there.gid()) != (uid, gid) {
        // Only root may change owners; other users own their copies.
        let _ = std::os::unix::fs::lchown(target.path(), Some(uid), Some(gid));
    }
    if there.mode() & 0o7777 != attributes.mode {
        target.set_mode(attributes.mode)?;
    }
    fs::symlink_metadata(target.path())
}

#[cfg(test)]
mod tests;
