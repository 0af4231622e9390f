//! Marks of zones in the folder: empty files that say that a zone has a blob.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::Path,
    time::{Duration, SystemTime},
};

use invariant::Present as _;
use model::{BlobDigest, DigestFunction, Zone};

use super::{Local, Tier};
use crate::{
    CasError,
    layout::{Entry, Kind},
};

impl Local {
    /// Those of `blobs` of which a zone has no mark here.
    pub(crate) fn unmarked(&self, zone: &Zone, blobs: &[BlobDigest]) -> Result<Vec<BlobDigest>, CasError> {
        let age_max = match self.tier {
            Tier::Only => None,
            // An older copy does not prove that the object store still has the mark, and is renewed there.
            Tier::Copies { proof_age_max } => proof_age_max,
        };
        let mut absent = Vec::new();
        for blob in blobs {
            let path = self.layout().mark_path(zone, blob);
            if !is_marked(&path, age_max).map_err(|source| CasError::disk("looking up", &path, source))? {
                absent.push(*blob);
            }
        }
        Ok(absent)
    }

    /// Makes marks, or makes them young.
    pub(crate) fn mark(&self, zone: &Zone, blobs: &[BlobDigest]) -> Result<(), CasError> {
        for blob in blobs {
            let path = self.layout().mark_path(zone, blob);
            make(&path).map_err(|source| CasError::disk("marking", &path, source))?;
        }
        Ok(())
    }

    /// Removes the marks of a blob that was deleted, of all zones, unless they are younger than `cutoff`: then
    /// the blob is being stored again.
    pub(crate) fn unmark(&self, blob: &BlobDigest, cutoff: SystemTime) {
        for zone in self.marked_zones() {
            let path = self.layout().mark_path(&zone, blob);
            let is_old = fs::metadata(&path).and_then(|meta| meta.modified()).is_ok_and(|at| at <= cutoff);
            if is_old && let Err(error) = fs::remove_file(&path) {
                tracing::debug!(path = %path.display(), %error, "cannot remove the mark of a deleted blob");
            }
        }
    }

    /// Removes old marks of blobs that are not in the folder, which a process that ended left.
    pub(crate) fn remove_stray_marks(&self, cutoff: SystemTime) {
        for zone in self.marked_zones() {
            let root = self.layout().zones().join(zone.as_str());
            for function in DigestFunction::ALL {
                let shards = fs::read_dir(root.join(function.as_str())).into_iter().flatten().flatten();
                let files = shards.filter_map(|shard| fs::read_dir(shard.path()).ok()).flatten().flatten();
                for file in files {
                    let name = file.file_name();
                    let entry = name.to_str().and_then(|name| Entry::parse(Kind::Blob, function, name));
                    if let Some(entry) = entry
                        && !self.path(&entry).exists()
                    {
                        self.unmark(&entry.digest, cutoff);
                    }
                }
            }
        }
    }

    /// The zones that have marks.
    fn marked_zones(&self) -> impl Iterator<Item = Zone> {
        let folders = fs::read_dir(self.layout().zones()).into_iter().flatten().flatten();
        folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok())
    }
}

fn is_marked(path: &Path, age_max: Option<Duration>) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(meta) => Ok(age_max
            .is_none_or(|max| meta.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age <= max)))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn make(path: &Path) -> io::Result<()> {
    let create = || OpenOptions::new().write(true).create_new(true).open(path).map(drop);
    match create() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(path.parent().present_or(path, "the folder of a mark"))?;
            match create() {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                made => made,
            }
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            File::options().write(true).open(path)?.set_modified(SystemTime::now())
        }
        made => made,
    }
}
