//! Stores blobs whose content is in memory.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use invariant::Present as _;
use model::{BlobDigest, DigestFunction};
use remote::Source;

use crate::{
    Cas, CasError,
    backing::{BATCH_CALLS, Backing, farm::Farm, objects::Objects},
    layout::Entry,
    local::{Local, Needed},
    put_progress::PutProgress,
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
        if self.admits_all(blobs.iter().map(|(digest, _)| digest.size)) {
            return self.put_admitted(blobs).await;
        }
        let mut outcomes = Vec::with_capacity(blobs.len());
        for (digest, content) in blobs {
            outcomes.push(match self.admit(&digest).await {
                Ok(()) => {
                    let stored = self.put_admitted(vec![(digest, content)]).await.pop();
                    stored.present_or(Err(CasError::Stopping), "the outcome of storing one blob")
                }
                Err(error) => Err(error),
            });
        }
        outcomes
    }

    async fn put_admitted(&self, blobs: Vec<(BlobDigest, Bytes)>) -> Vec<Result<(), CasError>> {
        let count = blobs.len();
        let to_prove: Vec<BlobDigest> = match self.view() {
            Some(_) => blobs.iter().map(|(digest, _)| *digest).collect(),
            None => Vec::new(),
        };
        let outcomes = self.store_many(blobs).await;
        let outcomes = outcomes.unwrap_or_else(|_| (0..count).map(|_| Err(CasError::Stopping)).collect());
        self.prove_stored(&to_prove, outcomes).await
    }

    async fn store_many(
        &self,
        blobs: Vec<(BlobDigest, Bytes)>,
    ) -> Result<Vec<Result<(), CasError>>, CasError> {
        match self.backing() {
            None if is_short(&blobs) && !self.config().fsync => Ok(self.local().put_many(&blobs)),
            None => self.run_blocking(move |local| Ok(local.put_many(&blobs))).await,
            Some(Backing::Objects(objects)) => self.put_many_through(objects, blobs).await,
            Some(Backing::Remote(farm)) => self.put_many_farm(farm, blobs).await,
        }
    }

    /// Writes to the object store first, then to the local tier.
    async fn put_many_through(
        &self,
        objects: &Objects,
        blobs: Vec<(BlobDigest, Bytes)>,
    ) -> Result<Vec<Result<(), CasError>>, CasError> {
        let blobs = Arc::new(blobs);
        let checked = Arc::clone(&blobs);
        let needed = self.run_blocking(move |local| Ok(local.check_many(&checked))).await?;
        let uploads = blobs.iter().cloned().zip(needed).map(|((digest, content), needed)| async move {
            if needed? == Needed::Yes {
                objects.put(&Entry::blob(digest), content).await?;
            }
            Ok(())
        });
        let uploaded: Vec<Result<(), CasError>> = stream::iter(uploads).buffered(BATCH_CALLS).collect().await;
        self.run_blocking(move |local| {
            let keep = |((digest, content), uploaded): (&(BlobDigest, Bytes), Result<(), CasError>)| {
                uploaded.and_then(|()| local.keep_copy(digest, content))
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
        let check = |local: &Local, blobs: &[(BlobDigest, Bytes)]| {
            blobs.iter().map(|(digest, content)| local.check_content(digest, content)).collect::<Vec<_>>()
        };
        let sound = self.run_blocking(move |local| Ok(check(local, &checked))).await?;
        let sources = blobs.iter().zip(&sound).filter(|(_, sound)| sound.is_ok());
        let sources = sources.map(|((digest, content), _)| (*digest, Source::Bytes(content.clone())));
        let sent = farm.put_all(sources.collect(), &PutProgress::default()).await;
        let kept = self.run_blocking(move |local| {
            let keep = |((digest, content), sound): (&(BlobDigest, Bytes), &Result<(), CasError>)| match sound
            {
                Ok(()) => local.keep_copy(digest, content),
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
