//! Files of the local tier, for callers that need paths.

use std::{collections::HashSet, io, path::PathBuf};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use model::BlobDigest;

use crate::{
    Cas, CasError,
    empty_blob::is_empty,
    known::LastUse,
    layout::{BLOB_MODE, Entry},
    store::Inner,
};

/// Number of files looked up in one blocking task.
const FILES: usize = 512;
const EXECUTABLE_MODE: u32 = 0o555;

/// A blob that is wanted as a file, and whether the file is executable.
type Wanted = (BlobDigest, bool);

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
        let now = self.inner.known.now();
        let cold: Vec<Wanted> = wanted
            .iter()
            .filter(|(digest, executable)| {
                let seen = self.inner.known.fresh(digest, now);
                !seen.is_some_and(|seen| seen.local && (seen.twin || !executable))
            })
            .copied()
            .collect();
        let absent = self.have_files(cold).await?;
        let absent = if absent.is_empty() { absent } else { self.fetch_files(absent).await? };
        let absent: HashSet<BlobDigest> = absent.into_iter().map(|(digest, _)| digest).collect();
        let path = |(digest, executable): &Wanted| {
            let kind = if *executable { Entry::twin(*digest) } else { Entry::blob(*digest) };
            (!absent.contains(digest)).then(|| self.inner.disk.layout.path(&kind))
        };
        Ok(wanted.iter().map(path).collect())
    }

    /// Ensures that files are there. Returns the missing ones.
    async fn have_files(&self, wanted: Vec<Wanted>) -> Result<Vec<Wanted>, CasError> {
        let parts: Vec<Vec<Wanted>> = wanted.chunks(FILES).map(<[Wanted]>::to_vec).collect();
        let absent: Vec<Vec<Wanted>> = stream::iter(parts)
            .map(|part| self.run_blocking(move |inner| inner.have_files(part)))
            .buffered(2)
            .try_collect()
            .await?;
        Ok(absent.concat())
    }

    /// Fetches files from the backing. Returns those that it does not have.
    async fn fetch_files(&self, wanted: Vec<Wanted>) -> Result<Vec<Wanted>, CasError> {
        if self.inner.backing.is_none() {
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

impl Inner {
    fn have_files(&self, mut wanted: Vec<Wanted>) -> Result<Vec<Wanted>, CasError> {
        let mut outcome = Ok(());
        wanted.retain(|(digest, executable)| {
            outcome.is_ok()
                && !self.have_file(digest, *executable).unwrap_or_else(|error| {
                    outcome = Err(error);
                    false
                })
        });
        outcome.map(|()| wanted)
    }

    fn have_file(&self, digest: &BlobDigest, executable: bool) -> Result<bool, CasError> {
        let now = self.known.now();
        if is_empty(digest) {
            self.have_empty(digest)?;
        } else if !self.touch_if_needed(digest, now)? {
            return Ok(false);
        }
        if executable {
            let twin = Entry::twin(*digest);
            // The blob is touched as well: the twin must not outlive it.
            let there = self.disk.touch(&twin)? || self.make_twin(&twin)?;
            if !there || !self.disk.touch(&Entry::blob(*digest))? {
                return Ok(false);
            }
            self.known.note(digest, LastUse { at: now, local: true, twin: true });
        }
        Ok(true)
    }

    /// Creates the executable twin of a blob: the mode belongs to the inode, so an executable needs its own file.
    fn make_twin(&self, twin: &Entry) -> Result<bool, CasError> {
        let Some(mut blob) = self.disk.open_file(&Entry::blob(twin.digest))? else { return Ok(false) };
        let mut temp = self.disk.temp(EXECUTABLE_MODE)?;
        let copied = io::copy(&mut blob, &mut temp.file);
        copied.map_err(|source| CasError::disk("writing", temp.path(), source))?;
        self.used(self.disk.commit(temp, twin, false)?);
        Ok(true)
    }

    /// Creates the file of the empty blob on demand.
    fn have_empty(&self, digest: &BlobDigest) -> Result<(), CasError> {
        if !self.touch_if_needed(digest, self.known.now())? {
            let temp = self.disk.temp(BLOB_MODE)?;
            self.used(self.disk.commit(temp, &Entry::blob(*digest), false)?);
        }
        Ok(())
    }
}
