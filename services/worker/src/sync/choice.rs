//! Chooses the entries of a source to bring.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::SystemTime,
};

use input_root::local::walk;
use invariant::impossible;

use super::{
    cancel::check,
    manifest::{Entry, Kind, Stamp, Version},
};

/// Which entries of a source to bring: all except the data folder of a farm.
#[derive(Debug, Clone, Default)]
pub(crate) struct Choice {
    /// Whether to leave out paths that ignore files in the source name.
    pub(crate) ignore_files: bool,
    /// The worker's data folder, always left out.
    pub(crate) data: Option<PathBuf>,
}

impl Choice {
    /// All entries of `source` to bring to `target`.
    pub(super) fn scan(
        &self,
        source: &Path,
        target: &Path,
        cancelled: &AtomicBool,
    ) -> io::Result<BTreeMap<PathBuf, Entry>> {
        let now = SystemTime::now();
        let mut found = BTreeMap::new();
        let canonical = |path: &Path| path.canonicalize().ok();
        let left_out = (self.data.as_deref().and_then(canonical), canonical(target));
        for entry in walk(source, self.ignore_files, move |folder| holds(folder, &left_out)) {
            check(cancelled)?;
            let entry = match entry {
                Ok(entry) => entry,
                // Entries that vanish during the scan are skipped.
                Err(error) if error.io_error().is_some_and(|it| it.kind() == io::ErrorKind::NotFound) => {
                    continue;
                }
                Err(error) => return Err(io::Error::other(error)),
            };
            let Ok(path) = entry.path().strip_prefix(source) else {
                impossible!("{} is not below {}", entry.path().display(), source.display());
                continue;
            };
            let (false, Ok(meta)) = (path.as_os_str().is_empty(), fs::symlink_metadata(entry.path())) else {
                continue;
            };
            let source = Stamp::of(&meta, now).map(Version::Stamp);
            let entry = Entry { kind: Kind::of(&meta), source, target: None };
            found.insert(path.to_owned(), entry);
        }
        Ok(found)
    }
}

/// Whether a folder is the worker's data folder or contains the target, which would be copied into itself.
fn holds(path: &Path, (data, target): &(Option<PathBuf>, Option<PathBuf>)) -> bool {
    let Some(name) = path.file_name() else { return false };
    let named = |other: &Option<PathBuf>| {
        other.as_deref().is_some_and(|other| other.ancestors().any(|above| above.file_name() == Some(name)))
    };
    // Metadata is read only for a folder of the same name.
    if !named(data) && !named(target) {
        return false;
    }
    let Ok(path) = path.canonicalize() else { return false };
    data.as_ref() == Some(&path) || target.as_ref().is_some_and(|target| target.starts_with(&path))
}
