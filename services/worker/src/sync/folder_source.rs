//! A folder of this machine as a source.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::SystemTime,
};

use super::{
    bounds::Bounds,
    choice::Choice,
    content::{copy, is_same},
    manifest::{Entry, Kind},
    source::{Attributes, Source},
};

/// How a file is brought from the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferMode {
    /// The source stays unchanged.
    Copy,
    /// The source is not needed afterwards. Its times mean nothing: the content decides.
    Move,
}

/// A folder of this machine.
#[derive(Debug, Clone)]
pub(crate) struct FolderSource {
    pub(crate) folder: PathBuf,
    /// Which entries to bring.
    pub(crate) choice: Choice,
    pub(crate) mode: TransferMode,
}

impl Source for FolderSource {
    fn entries(&self, target: &Path, cancelled: &AtomicBool) -> io::Result<BTreeMap<PathBuf, Entry>> {
        let mut found = self.choice.scan(&self.folder, target, cancelled)?;
        if self.mode == TransferMode::Move {
            for entry in found.values_mut() {
                entry.source = None;
            }
        }
        Ok(found)
    }

    fn attributes(&self, path: &Path, kind: Kind) -> Option<Attributes> {
        let meta = fs::symlink_metadata(self.folder.join(path)).ok()?;
        (Kind::of(&meta) == kind).then(|| Attributes {
            size: meta.len(),
            mode: meta.mode() & 0o7777,
            owner: (meta.uid(), meta.gid()),
        })
    }

    fn link_target(&self, path: &Path) -> io::Result<PathBuf> {
        fs::read_link(self.folder.join(path))
    }

    fn is_same(&self, path: &Path, target: &Path, cancelled: &AtomicBool) -> io::Result<bool> {
        is_same(&self.folder.join(path), target, cancelled)
    }

    fn fetch(&self, path: &Path, target: &Path, keep_time: bool, bounds: &Bounds<'_>) -> io::Result<()> {
        let source = self.folder.join(path);
        match self.mode {
            TransferMode::Copy => {
                let from = fs::File::open(source)?;
                let meta = from.metadata()?;
                let modified = if keep_time { Some(meta.modified()?) } else { None };
                copy(&from, target, meta.mode() & 0o777, modified, bounds)
            }
            TransferMode::Move => {
                fs::rename(source, target)?;
                if keep_time {
                    return Ok(());
                }
                // The mode may forbid writing, but the owner may set times.
                let times = fs::FileTimes::new().set_modified(SystemTime::now());
                fs::File::open(target)?.set_times(times)
            }
        }
    }
}
