//! Scans the folder of a store.

use std::{
    collections::{BinaryHeap, HashSet, VecDeque},
    fs::{self, DirEntry},
    os::unix::fs::MetadataExt as _,
    time::{Duration, SystemTime},
};

use model::DigestFunction;

use super::kept::kept_inodes;
use crate::{
    disk::put_back,
    layout::{Entry, Kind, Layout, TEMP_PREFIX},
};

/// Maximum number of files remembered from one scan, the oldest ones; each takes about 70 bytes.
const CANDIDATES: usize = 100_000;
/// Age at which a file in `tmp/` is stale: its writer is gone.
const STALE: Duration = Duration::from_secs(3600);

/// A file, and when a caller last relied on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    pub(super) touched: SystemTime,
    pub(super) entry: Entry,
}

pub(super) struct Scan {
    /// The oldest files, oldest first.
    pub(super) candidates: VecDeque<Candidate>,
    /// Bytes of disk that all files use, without the blobs that records name.
    pub(super) bytes: u64,
}

/// Reads the metadata of every file. Unreadable entries are foreign or gone.
pub(super) fn scan(layout: &Layout) -> Scan {
    let mut oldest = BinaryHeap::new();
    let mut bytes = 0;
    let kept = kept_inodes(layout);
    for kind in Kind::ALL {
        for function in DigestFunction::ALL {
            let folders = layout.shards(kind, function).filter_map(|folder| fs::read_dir(folder).ok());
            for file in folders.flatten().flatten() {
                let Some((candidate, size)) = candidate_of(kind, function, &file, &kept) else { continue };
                bytes += size;
                oldest.push(candidate);
                if oldest.len() > CANDIDATES {
                    oldest.pop();
                }
            }
        }
    }
    Scan { candidates: oldest.into_sorted_vec().into(), bytes }
}

fn candidate_of(
    kind: Kind,
    function: DigestFunction,
    file: &DirEntry,
    kept: &HashSet<u64>,
) -> Option<(Candidate, u64)> {
    let name = file.file_name();
    let Some(entry) = Entry::parse(kind, function, name.to_str()?) else {
        if name.to_str()?.starts_with(TEMP_PREFIX) {
            remove_if_stale(file);
        }
        return None;
    };
    let meta = file.metadata().ok()?;
    if meta.nlink() > 1 && kept.contains(&meta.ino()) {
        return None;
    }
    Some((Candidate { touched: meta.modified().ok()?, entry }, meta.blocks() * 512))
}

/// Moves back the files that a dead evictor left in the trash.
pub(super) fn empty_trash(layout: &Layout) {
    for file in fs::read_dir(layout.trash()).into_iter().flatten().flatten() {
        match file.file_name().to_str().and_then(Entry::parse_trash) {
            Some(entry) => put_back(&file.path(), &layout.path(&entry)),
            None => {
                // Not a file of the store. If this fails, the next evictor tries again.
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

/// Removes the temporary files of dead writers.
pub(super) fn remove_stale_temps(layout: &Layout) {
    for file in fs::read_dir(layout.temps()).into_iter().flatten().flatten() {
        remove_if_stale(&file);
    }
}

fn remove_if_stale(file: &DirEntry) {
    let touched = file.metadata().and_then(|meta| meta.modified());
    let stale = touched.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > STALE));
    if stale && let Err(error) = fs::remove_file(file.path()) {
        tracing::warn!(path = %file.path().display(), %error, "cannot remove a stale temporary file");
    }
}
