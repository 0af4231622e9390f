//! Blobs by their hash and in order, whole blobs of any size, and blobs of the object store.

use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt as _;
use model::{BlobDigest, Digest, DigestFunction};

use crate::{Cas, CasError, Listed};

/// Size in bytes up to which [`Cas::get`] reads and verifies a blob at once.
const AT_ONCE: u64 = 64 << 20;

impl Cas {
    /// Returns the full digest of a blob of which the hash is known, and perhaps the size. Without the size it is looked
    /// up by its name, which a farm behind the store does not support.
    pub async fn resolve(&self, digest: &Digest, size: Option<u64>) -> Result<BlobDigest, CasError> {
        if let Some(size) = size {
            return Ok(digest.of_size(size));
        }
        let empty = digest.of_size(0);
        if empty == DigestFunction::Sha256.empty() {
            return Ok(empty);
        }
        let hash = digest.hex().to_owned();
        let mut found = self.run_blocking(move |local| Ok(local.find(&hash))).await?;
        if let (None, Some(objects)) = (found, self.objects()) {
            found = objects.find(DigestFunction::Sha256, digest.hex()).await?;
        }
        let sized = !self.is_remote();
        if let Some(blob) = &found
            && !self.sees(blob).await?
        {
            // Its size is unknown to the zone.
            found = None;
        }
        found.ok_or_else(|| CasError::NotFound { digest: digest.clone(), sized })
    }

    /// Returns up to `max` blobs of the local tier after `after`, ordered by function and hash. Fewer than `max` mean
    /// that the list is complete.
    pub async fn list(&self, after: Option<BlobDigest>, max: usize) -> Result<Vec<Listed>, CasError> {
        self.run_blocking(move |local| Ok(local.list(after, max))).await
    }

    /// Reads a whole blob of at most `max` bytes and verifies it.
    pub async fn read_whole(&self, digest: &BlobDigest, max: u64) -> Result<Bytes, CasError> {
        let missing = || CasError::Missing { digest: *digest };
        if digest.size > max {
            return Err(CasError::TooLargeAtOnce { digest: *digest, max });
        }
        if digest.size <= AT_ONCE {
            return self.get(digest).await?.ok_or_else(missing);
        }
        let mut pieces = self.read(digest, 0, None).await?.ok_or_else(missing)?;
        let mut content = BytesMut::new();
        while let Some(piece) = pieces.try_next().await? {
            content.extend_from_slice(&piece);
        }
        let content = content.freeze();
        let same = content.clone();
        let wanted = *digest;
        self.run_blocking(move |local| local.check_content(&wanted, &same)).await?;
        Ok(content)
    }

    /// Keeps each blob in the object store behind the local tier at least until its time, which may be at most
    /// `retention` from now. Returns those that it does not have.
    pub async fn keep_objects(
        &self,
        named: Vec<(BlobDigest, SystemTime)>,
        retention: Duration,
    ) -> Result<Vec<BlobDigest>, CasError> {
        match self.objects() {
            Some(objects) => objects.keep(named, retention).await,
            None => Ok(Vec::new()),
        }
    }

    /// Whether the blobs are in an object store behind the local tier.
    pub fn has_objects(&self) -> bool {
        self.objects().is_some()
    }

    /// Deletes the objects of the object store behind the local tier that were neither written nor renewed within
    /// `retention`, which is at least [`CasConfig::retention`](crate::CasConfig::retention). Returns their number; 0
    /// without an object store.
    pub async fn sweep_objects(&self, retention: Duration) -> Result<u64, CasError> {
        match self.objects() {
            Some(objects) => objects.sweep(retention).await,
            None => Ok(0),
        }
    }
}
