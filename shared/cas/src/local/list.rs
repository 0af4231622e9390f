//! Lists the blobs of the folder, and finds one by its hash.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::SystemTime};

use invariant::Present as _;
use model::{BlobDigest, DigestFunction};

use super::Local;
use crate::layout::{Entry, Kind};

/// A blob of the local tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    pub digest: BlobDigest,
    /// When a caller last relied on the blob.
    pub relied_at: SystemTime,
    /// Bytes of disk in allocated blocks.
    pub disk_bytes: u64,
}

impl Local {
    /// Returns up to `max` blobs after `after`, ordered by function and hash.
    pub(crate) fn list(&self, after: Option<BlobDigest>, max: usize) -> Vec<Listed> {
        let mut found = Vec::new();
        for function in DigestFunction::ALL {
            let first = match after {
                Some(after) if function < after.function => continue,
                Some(after) if function == after.function => {
                    let [first, ..] = after.hash;
                    first
                }
                Some(_) | None => 0,
            };
            for folder in self.layout().shards(Kind::Blob, function).skip(usize::from(first)) {
                let files = fs::read_dir(folder).into_iter().flatten().flatten();
                let blob = |file: fs::DirEntry| {
                    let entry = Entry::parse(Kind::Blob, function, file.file_name().to_str()?)?;
                    after.is_none_or(|after| entry.digest > after).then_some(())?;
                    let meta = file.metadata().ok()?;
                    let relied_at = meta.modified().ok()?;
                    Some(Listed { digest: entry.digest, relied_at, disk_bytes: meta.blocks() * 512 })
                };
                let mut blobs: Vec<Listed> = files.filter_map(blob).collect();
                blobs.sort_unstable_by_key(|blob| blob.digest);
                found.extend(blobs);
                if found.len() >= max {
                    found.truncate(max);
                    return found;
                }
            }
        }
        found
    }

    /// Looks for the SHA-256 blob with this hash.
    pub(crate) fn find(&self, hash: &str) -> Option<BlobDigest> {
        let any = BlobDigest::from_parts(DigestFunction::Sha256, hash, 0).ok()?;
        let path = self.path(&Entry::blob(any));
        let folder = path.parent().present_or(Path::new("/"), "the folder of a blob");
        let mut names = fs::read_dir(folder).ok()?.flatten();
        names.find_map(|file| {
            let entry = Entry::parse(Kind::Blob, DigestFunction::Sha256, file.file_name().to_str()?)?;
            (entry.digest.hash == any.hash).then_some(entry.digest)
        })
    }
}
