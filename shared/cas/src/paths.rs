//! Files of the local tier, for callers that need paths.

use std::{collections::HashSet, path::PathBuf};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use model::BlobDigest;

use crate::{Cas, CasError, layout::Entry, local::WantedFile};

/// Number of files looked up in one blocking task.
const FILES: usize = 512;

impl Cas {
    /// Returns the path of a file with this content, of mode 0444, or 0555 when `executable`. The file may be read or
    /// hard-linked, never written. It is fetched from the backing if necessary. It stays for at least
    /// [`CasConfig::keep`](crate::CasConfig::keep); files that are linked elsewhere are not evicted at all.
    ///
    /// File systems limit the number of links to one file (65,000 on ext4): beyond that, copy it. The empty blob
    /// has a file as well.
    pub async fn local_path(
        &self,
        digest: &BlobDigest,
        executable: bool,
    ) -> Result<Option<PathBuf>, CasError> {
        Ok(self.local_paths(&[(*digest, executable)]).await?.pop().flatten())
    }

    /// Like [`Cas::local_path`], for many blobs, in their order.
    pub async fn local_paths(&self, wanted: &[(BlobDigest, bool)]) -> Result<Vec<Option<PathBuf>>, CasError> {
        let digests: Vec<BlobDigest> = match self.view() {
            Some(_) => wanted.iter().map(|(digest, _)| *digest).collect(),
            None => Vec::new(),
        };
        let hidden = self.hidden(&digests).await?;
        let local = self.local();
        let now = local.now();
        let is_cold = |wanted: &&WantedFile| !hidden.contains(&wanted.0) && !local.is_file_known(wanted, now);
        let cold: Vec<WantedFile> = wanted.iter().filter(is_cold).copied().collect();
        let absent = self.have_files(cold).await?;
        let absent = if absent.is_empty() { absent } else { self.fetch_files(absent).await? };
        let mut absent: HashSet<BlobDigest> = absent.into_iter().map(|(digest, _)| digest).collect();
        absent.extend(hidden);
        let path = |(digest, executable): &WantedFile| {
            let kind = if *executable { Entry::twin(*digest) } else { Entry::blob(*digest) };
            (!absent.contains(digest)).then(|| local.path(&kind))
        };
        Ok(wanted.iter().map(path).collect())
    }

    /// Ensures that files are there. Returns the missing ones.
    async fn have_files(&self, wanted: Vec<WantedFile>) -> Result<Vec<WantedFile>, CasError> {
        let parts: Vec<Vec<WantedFile>> = wanted.chunks(FILES).map(<[WantedFile]>::to_vec).collect();
        let absent: Vec<Vec<WantedFile>> = stream::iter(parts)
            .map(|part| self.run_blocking(move |local| local.have_files(part)))
            .buffered(2)
            .try_collect()
            .await?;
        Ok(absent.concat())
    }

    /// Fetches files from the backing. Returns those that it does not have.
    async fn fetch_files(&self, wanted: Vec<WantedFile>) -> Result<Vec<WantedFile>, CasError> {
        if self.backing().is_none() {
            return Ok(wanted);
        }
        let mut digests: Vec<BlobDigest> = wanted.iter().map(|(digest, _)| *digest).collect();
        digests.sort_unstable();
        digests.dedup();
        let there = self.fetch_many(&digests).await?;
        let (fetched, absent): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|(digest, _)| there.contains(digest));
        let lost = self.have_files(fetched).await?;
        Ok(absent.into_iter().chain(lost).collect())
    }
}
