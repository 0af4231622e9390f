//! Lists the blobs of the local tier.

use std::{fs, os::unix::fs::MetadataExt as _, time::SystemTime};

use model::{BlobDigest, DigestFunction};

use crate::{
    Cas, CasError,
    layout::{Entry, Kind},
    store::Inner,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    pub digest: BlobDigest,
    /// When a caller last relied on the blob.
    pub relied_at: SystemTime,
    /// Bytes of disk in allocated blocks.
    pub disk_bytes: u64,
}

impl Cas {
    /// Returns up to `max` blobs of the local tier after `after`, ordered by function and hash. Fewer than `max` mean
    /// that the list is complete.
    pub async fn list(&self, after: Option<BlobDigest>, max: usize) -> Result<Vec<Listed>, CasError> {
        self.run_blocking(move |inner| Ok(inner.list(after, max))).await
    }
}

impl Inner {
    fn list(&self, after: Option<BlobDigest>, max: usize) -> Vec<Listed> {
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
            for folder in self.disk.layout.shards(Kind::Blob, function).skip(usize::from(first)) {
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
}
