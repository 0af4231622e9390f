//! Stores blobs whose content is in memory.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use invariant::Present as _;
use model::{BlobDigest, DigestFunction};
use remote::Source;

use crate::{
    Cas, CasError,
    backing::{BATCH_CALLS, Backing, farm::Farm, objects::Objects},
    empty_blob::is_empty,
    layout::{BLOB_MODE, Entry},
    store::Inner,
};

/// Maximum number of blobs, and maximum size of each in bytes, that are written without a
/// handover to a blocking thread.
const SHORT_BLOBS: usize = 4;
const SHORT_BYTES: usize = 4 << 10;

impl Cas {
    /// Stores a blob whose content is in memory.
    pub async fn put(&self, digest: &BlobDigest, content: Bytes) -> Result<(), CasError> {
        let stored = self.put_many(vec![(*digest, content)]).await.pop();
        stored.present_or(Err(CasError::Stopping), "the outcome of storing one blob")
    }

    /// Stores content and returns its digest.
    pub async fn put_bytes(&self, function: DigestFunction, content: Bytes) -> Result<BlobDigest, CasError> {
        let digest = function.digest(&content);
        self.put(&digest, content).await?;
        Ok(digest)
    }

    /// Stores many blobs as one batch. Returns the outcome of each, in their order. The refusal of one
    /// does not affect the others.
    pub async fn put_many(&self, blobs: Vec<(BlobDigest, Bytes)>) -> Vec<Result<(), CasError>> {
        let count = blobs.len();
        let outcome = match &self.inner.backing {
            None => self.run_blocking_unless(is_short(&blobs), move |inner| Ok(inner.put_many(&blobs))).await,
            Some(Backing::Objects(objects)) => self.put_many_through(objects, blobs).await,
            Some(Backing::Remote(farm)) => self.put_many_farm(farm, blobs).await,
        };
        outcome.unwrap_or_else(|_| (0..count).map(|_| Err(CasError::Stopping)).collect())
    }

    /// Writes to the object store first, then to the local tier.
    async fn put_many_through(
        &self,
        objects: &Objects,
        blobs: Vec<(BlobDigest, Bytes)>,
    ) -> Result<Vec<Result<(), CasError>>, CasError> {
        let blobs = Arc::new(blobs);
        let checked = Arc::clone(&blobs);
        let needed = self.run_blocking(move |inner| Ok(inner.check_many(&checked))).await?;
        let uploads = blobs.iter().cloned().zip(needed).map(|((digest, content), needed)| async move {
            if needed? == Needed::Yes {
                objects.put(&Entry::blob(digest), content).await?;
            }
            Ok(())
        });
        let uploaded: Vec<Result<(), CasError>> = stream::iter(uploads).buffered(BATCH_CALLS).collect().await;
        self.run_blocking(move |inner| {
            let keep = |((digest, content), uploaded): (&(BlobDigest, Bytes), Result<(), CasError>)| {
                uploaded.and_then(|()| inner.keep_copy(digest, content))
            };
            Ok(blobs.iter().zip(uploaded).map(keep).collect())
        })
        .await
    }

    /// Stores blobs on the farm, then in the local tier.
    async fn put_many_farm(
        &self,
        farm: &Farm,
        blobs: Vec<(BlobDigest, Bytes)>,
    ) -> Result<Vec<Result<(), CasError>>, CasError> {
        let blobs = Arc::new(blobs);
        let checked = Arc::clone(&blobs);
        let check = |inner: &Inner, blobs: &[(BlobDigest, Bytes)]| {
            blobs.iter().map(|(digest, content)| inner.check_content(digest, content)).collect::<Vec<_>>()
        };
        let sound = self.run_blocking(move |inner| Ok(check(inner, &checked))).await?;
        let sources = blobs.iter().zip(&sound).filter(|(_, sound)| sound.is_ok());
        let sources = sources.map(|((digest, content), _)| (*digest, Source::Bytes(content.clone())));
        let sent = farm.put_all(sources.collect()).await;
        let kept = self.run_blocking(move |inner| {
            let keep = |((digest, content), sound): (&(BlobDigest, Bytes), &Result<(), CasError>)| match sound
            {
                Ok(()) => inner.keep_copy(digest, content),
                Err(_) => Ok(()),
            };
            let kept: Vec<_> = blobs.iter().zip(&sound).map(keep).collect();
            Ok(sound.into_iter().zip(kept).map(|(sound, kept)| sound.and(kept)).collect::<Vec<_>>())
        });
        let kept = kept.await?;
        let Err(failure) = sent else { return Ok(kept) };
        // Files in the local tier do no harm: a blob counts as stored only if the farm has it.
        Ok(kept.into_iter().map(|kept| kept.and_then(|()| Err(farm.failed(&failure)))).collect())
    }
}

/// Whether writing these blobs takes less time than a handover to a blocking thread.
fn is_short(blobs: &[(BlobDigest, Bytes)]) -> bool {
    blobs.len() <= SHORT_BLOBS && blobs.iter().all(|(_, content)| content.len() <= SHORT_BYTES)
}

/// Whether a verified blob must be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needed {
    Yes,
    No,
}

impl Inner {
    fn put_many(&self, blobs: &[(BlobDigest, Bytes)]) -> Vec<Result<(), CasError>> {
        let mut used = 0;
        let outcomes = blobs
            .iter()
            .zip(self.check_many(blobs))
            .map(|((digest, content), needed)| match needed? {
                Needed::No => Ok(()),
                Needed::Yes => {
                    used += self.write(digest, content)?;
                    Ok(())
                }
            })
            .collect();
        self.used(used);
        outcomes
    }

    /// Verifies blobs and returns which of them must be written.
    fn check_many(&self, blobs: &[(BlobDigest, Bytes)]) -> Vec<Result<Needed, CasError>> {
        let mut outcomes: Vec<_> =
            blobs.iter().map(|(digest, content)| self.check(digest, content)).collect();
        let asked = |outcome: &Result<Needed, CasError>| matches!(outcome, Ok(Needed::Yes));
        let digests: Vec<BlobDigest> = blobs
            .iter()
            .zip(&outcomes)
            .filter_map(|((digest, _), outcome)| asked(outcome).then_some(*digest))
            .collect();
        let absent: HashSet<BlobDigest> = match self.touch_blobs(&digests) {
            Ok(absent) => absent.into_iter().collect(),
            // The write will fail as well and report the error.
            Err(_) => digests.into_iter().collect(),
        };
        for ((digest, _), outcome) in blobs.iter().zip(&mut outcomes).filter(|(_, outcome)| asked(outcome)) {
            let refused = self.backing.is_none() && self.refuses(digest.size);
            *outcome = match (absent.contains(digest), refused) {
                (true, true) => Err(CasError::Full),
                (true, false) => Ok(Needed::Yes),
                (false, _) => Ok(Needed::No),
            };
        }
        outcomes
    }

    /// Verifies a blob and returns whether it may have to be written.
    fn check(&self, digest: &BlobDigest, content: &[u8]) -> Result<Needed, CasError> {
        self.check_content(digest, content)?;
        let there = is_empty(digest) || self.known.fresh(digest, self.known.now()).is_some();
        Ok(if there { Needed::No } else { Needed::Yes })
    }

    pub(crate) fn check_content(&self, digest: &BlobDigest, content: &[u8]) -> Result<(), CasError> {
        self.check_size(digest)?;
        let found = digest.function.digest(content);
        if found == *digest { Ok(()) } else { Err(CasError::Mismatch { wanted: *digest, found }) }
    }

    pub(crate) fn check_size(&self, digest: &BlobDigest) -> Result<(), CasError> {
        let max = self.config.blob_bytes_max;
        if digest.size > max { Err(CasError::TooLarge { digest: *digest, max }) } else { Ok(()) }
    }

    /// Writes a verified blob to the local tier. Returns the bytes of disk that it uses.
    fn write(&self, digest: &BlobDigest, content: &[u8]) -> Result<u64, CasError> {
        let at = self.known.now();
        let entry = Entry::blob(*digest);
        let temp = self.disk.temp_beside(&entry, BLOB_MODE, content)?;
        let used = self.disk.commit(temp, &entry, false)?;
        self.known.note_local(digest, at);
        self.stored(digest, used);
        self.remember(digest, content);
        Ok(used)
    }

    /// Writes a verified blob that was missing.
    pub(crate) fn write_new(&self, digest: &BlobDigest, content: &[u8]) -> Result<(), CasError> {
        if !is_empty(digest) {
            self.used(self.write(digest, content)?);
        }
        Ok(())
    }

    /// Writes a copy of a blob from the backing. A full local tier is not an error.
    pub(crate) fn keep_copy(&self, digest: &BlobDigest, content: &[u8]) -> Result<(), CasError> {
        if is_empty(digest) || self.is_full() || self.touch_if_needed(digest, self.known.now())? {
            return Ok(());
        }
        match self.write(digest, content) {
            Ok(used) => self.used(used),
            Err(CasError::Full) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
