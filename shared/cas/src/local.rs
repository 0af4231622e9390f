//! Files of the local tier, for who needs them as files.

use std::{collections::HashSet, io, path::PathBuf};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use model::BlobDigest;

use crate::{
    Cas, CasError,
    known::Seen,
    layout::Entry,
    store::{Inner, is_empty},
    write::BLOB_MODE,
};

/// So many files are looked up with one hop.
const FILES: usize = 512;
const EXECUTABLE_MODE: u32 = 0o555;

/// A blob that is wanted as a file, and whether executable.
type Wanted = (BlobDigest, bool);

impl Cas {
    /// The path of a file with this content, of mode 0444, or 0555 when `executable`; to be read or hard-linked, and
    /// never written to. Fetched from the object store first when need be. The file stays at least for
    /// [`CasConfig::keep`](crate::CasConfig::keep); what is linked elsewhere is not evicted at all.
    ///
    /// A file system allows only so many links of one file (65,000 on ext4): past that, copy. The empty blob has a
    /// file as well.
    pub async fn local_path(
        &self,
        digest: &BlobDigest,
        executable: bool,
    ) -> Result<Option<PathBuf>, CasError> {
        Ok(self.local_paths(&[(*digest, executable)]).await?.pop().flatten())
    }

    /// As [`Cas::local_path`], for many, in their order.
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

    /// Sees to it that files are there; those that are not.
    async fn have_files(&self, wanted: Vec<Wanted>) -> Result<Vec<Wanted>, CasError> {
        let parts: Vec<Vec<Wanted>> = wanted.chunks(FILES).map(<[Wanted]>::to_vec).collect();
        let absent: Vec<Vec<Wanted>> = stream::iter(parts)
            .map(|part| self.hop(move |inner| inner.have_files(part)))
            .buffered(2)
            .try_collect()
            .await?;
        Ok(absent.concat())
    }

    /// Fetches files from the backing; those that it does not have.
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
        } else if !self.rely(digest, now)? {
            return Ok(false);
        }
        if executable {
            let twin = Entry::twin(*digest);
            // The blob is touched as well: the twin must not outlive it.
            let there = self.disk.touch(&twin)? || self.make_twin(&twin)?;
            if !there || !self.disk.touch(&Entry::blob(*digest))? {
                return Ok(false);
            }
            self.known.note(digest, Seen { at: now, local: true, twin: true });
        }
        Ok(true)
    }

    /// The mode belongs to the inode, so an executable needs one of its own.
    fn make_twin(&self, twin: &Entry) -> Result<bool, CasError> {
        let Some(mut blob) = self.disk.open_file(&Entry::blob(twin.digest))? else { return Ok(false) };
        let mut temp = self.disk.temp(EXECUTABLE_MODE)?;
        let copied = io::copy(&mut blob, &mut temp.file);
        copied.map_err(|source| CasError::disk("writing", temp.path(), source))?;
        self.used(self.disk.commit(temp, twin, false)?);
        Ok(true)
    }

    /// The file of the empty blob is made when it is wanted.
    fn have_empty(&self, digest: &BlobDigest) -> Result<(), CasError> {
        if !self.rely(digest, self.known.now())? {
            let temp = self.disk.temp(BLOB_MODE)?;
            self.used(self.disk.commit(temp, &Entry::blob(*digest), false)?);
        }
        Ok(())
    }
}
