//! Marks of zones in the folder: empty files that say that a zone has a blob.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io,
    path::Path,
    time::{Duration, SystemTime},
};

use invariant::Present as _;
use model::{BlobDigest, DigestFunction, Zone, ZoneUse};

use super::{Local, Tier};
use crate::{
    CasError,
    disk::{put_back, touch_now},
    layout::{Entry, Kind},
};

/// How a mark is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookUp {
    /// Its time stays as it is.
    Passive,
    /// Its time becomes the present: the zone relies on the blob, and loses others before.
    Relying,
}

/// A mark, and when its zone last relied on the blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    pub(crate) touched: SystemTime,
    pub(crate) blob: BlobDigest,
}

/// What became of a mark that was to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TakenMark {
    Removed,
    /// Its zone relies on the blob: it is where it was.
    Young,
    Absent,
}

impl Local {
    /// Those of `blobs` of which a zone has no mark here.
    pub(crate) fn unmarked(
        &self,
        zone: &Zone,
        blobs: &[BlobDigest],
        how: LookUp,
    ) -> Result<Vec<BlobDigest>, CasError> {
        let age_max = match self.tier {
            Tier::Only => None,
            // An older copy does not prove that the object store still has the mark, and is renewed there.
            Tier::Copies { proof_age_max } => proof_age_max,
        };
        let mut absent = Vec::new();
        for blob in blobs {
            let path = self.layout().mark_path(zone, blob);
            let is_marked = match how {
                LookUp::Passive => is_marked(&path, age_max),
                LookUp::Relying => touch_now(&path).map(|there| there.is_some()),
            };
            if !is_marked.map_err(|source| CasError::disk("looking up", &path, source))? {
                absent.push(*blob);
            }
        }
        Ok(absent)
    }

    /// Makes marks, or makes them young.
    pub(crate) fn mark(&self, zone: &Zone, blobs: &[BlobDigest]) -> Result<(), CasError> {
        let mut more = ZoneUse::NOTHING;
        let mut outcome = Ok(());
        for blob in blobs {
            let path = self.layout().mark_path(zone, blob);
            match make(&path) {
                Ok(true) => more = more.plus(ZoneUse::of_blob(blob.size)),
                Ok(false) => {}
                Err(source) => {
                    outcome = Err(CasError::disk("marking", &path, source));
                    break;
                }
            }
        }
        self.possessed(zone, more);
        outcome
    }

    /// Removes a mark unless it is younger than `cutoff`.
    pub(crate) fn take_mark(
        &self,
        zone: &Zone,
        blob: &BlobDigest,
        cutoff: SystemTime,
    ) -> io::Result<TakenMark> {
        let (mark, trashed) = (self.layout().mark_path(zone, blob), self.layout().trashed_mark());
        match fs::rename(&mark, &trashed) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(TakenMark::Absent),
            renamed => renamed?,
        }
        // A touch before the rename is visible now; a later caller finds no mark.
        if fs::symlink_metadata(&trashed)?.modified().is_ok_and(|touched| touched > cutoff) {
            put_back(&trashed, &mark);
            return Ok(TakenMark::Young);
        }
        fs::remove_file(&trashed)?;
        Ok(TakenMark::Removed)
    }

    /// Removes the marks of a blob that was deleted, of all zones, unless they are younger than `cutoff`: then
    /// the blob is being stored again. Returns the zones that had it.
    pub(crate) fn unmark(&self, blob: &BlobDigest, cutoff: SystemTime) -> Vec<Zone> {
        let mut had = Vec::new();
        for zone in self.marked_zones() {
            let path = self.layout().mark_path(&zone, blob);
            let is_old = fs::metadata(&path).and_then(|meta| meta.modified()).is_ok_and(|at| at <= cutoff);
            if !is_old {
                continue;
            }
            match self.take_mark(&zone, blob, cutoff) {
                Ok(TakenMark::Removed) => had.push(zone),
                Ok(TakenMark::Young | TakenMark::Absent) => {}
                Err(error) => {
                    tracing::debug!(path = %path.display(), %error, "cannot remove the mark of a deleted blob");
                }
            }
        }
        had
    }

    /// Whether any zone has a blob.
    pub(crate) fn has_marks(&self, blob: &BlobDigest) -> bool {
        self.marked_zones().any(|zone| self.layout().mark_path(&zone, blob).exists())
    }

    /// Counts what each zone has. Removes old marks of blobs that are not in the folder, which
    /// a process that ended left.
    pub(crate) fn count_marks(&self, cutoff: SystemTime) -> BTreeMap<Zone, ZoneUse> {
        let mut counted = BTreeMap::new();
        for zone in self.marked_zones() {
            let mut used = ZoneUse::NOTHING;
            for (blob, _) in self.marks_of(&zone) {
                if !self.path(&Entry::blob(blob)).exists() && self.unmark(&blob, cutoff).contains(&zone) {
                    continue;
                }
                used = used.plus(ZoneUse::of_blob(blob.size));
            }
            counted.insert(zone, used);
        }
        counted
    }

    /// The blobs that a zone has, and the files of their marks.
    pub(crate) fn marks_of(&self, zone: &Zone) -> impl Iterator<Item = (BlobDigest, fs::DirEntry)> {
        let root = self.layout().zones().join(zone.as_str());
        DigestFunction::ALL.into_iter().flat_map(move |function| {
            let shards = fs::read_dir(root.join(function.as_str())).into_iter().flatten().flatten();
            let files = shards.filter_map(|shard| fs::read_dir(shard.path()).ok()).flatten().flatten();
            files.filter_map(move |file| {
                let entry = Entry::parse(Kind::Blob, function, file.file_name().to_str()?)?;
                Some((entry.digest, file))
            })
        })
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

/// Makes a mark, or makes it young. Returns whether it is new.
fn make(path: &Path) -> io::Result<bool> {
    loop {
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(_) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(path.parent().present_or(path, "the folder of a mark"))?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // By its path: the evictor may be removing it, and must see this or leave nothing of it.
                if touch_now(path)?.is_some() {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
    }
}
