//! A folder of this machine as a source.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::SystemTime,
};

use disk::{Confined, Place};

use super::{
    bounds::Bounds,
    choice::Choice,
    content::{copy, is_same},
    manifest::{Entry, Kind},
    source::{Attributes, Source},
};

/// How a file is brought from the source.
#[derive(Debug, Clone)]
pub(crate) enum TransferMode {
    /// The source, which others may change meanwhile, stays as it is: it is read through the folder that was opened.
    Copy(Confined),
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
        match self.mode {
            TransferMode::Copy(_) => {}
            TransferMode::Move => found.values_mut().for_each(|entry| entry.source = None),
        }
        Ok(found)
    }

    fn attributes(&self, path: &Path, kind: Kind) -> Option<Attributes> {
        let meta = match &self.mode {
            TransferMode::Copy(folder) => folder.metadata(path),
            TransferMode::Move => fs::symlink_metadata(self.folder.join(path)),
        };
        let meta = meta.ok()?;
        (Kind::of(&meta) == kind).then(|| Attributes {
            size: meta.len(),
            mode: meta.mode() & 0o1777,
            owner: (meta.uid(), meta.gid()),
        })
    }

    fn link_target(&self, path: &Path) -> io::Result<PathBuf> {
        match &self.mode {
            TransferMode::Copy(folder) => folder.link_target(path),
            TransferMode::Move => fs::read_link(self.folder.join(path)),
        }
    }

    fn is_same(&self, path: &Path, target: &Place, cancelled: &AtomicBool) -> io::Result<bool> {
        let file = match &self.mode {
            TransferMode::Copy(folder) => folder.file(path),
            TransferMode::Move => fs::File::open(self.folder.join(path)),
        };
        is_same(file?, target, cancelled)
    }

    fn fetch(&self, path: &Path, target: &Place, keep_time: bool, bounds: &Bounds<'_>) -> io::Result<()> {
        match &self.mode {
            TransferMode::Copy(folder) => {
                let from = folder.file(path)?;
                let meta = from.metadata()?;
                let modified = if keep_time { Some(meta.modified()?) } else { None };
                copy(&from, target, meta.mode() & 0o777, modified, bounds)
            }
            TransferMode::Move => {
                fs::rename(self.folder.join(path), target.path())?;
                if keep_time {
                    return Ok(());
                }
                // The mode may forbid writing, but the owner may set times.
                let times = fs::FileTimes::new().set_modified(SystemTime::now());
                target.file()?.set_times(times)
            }
        }
    }
}
