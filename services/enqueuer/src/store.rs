//! Calls to the store, with a time limit.

use std::time::Duration;

use bytes::Bytes;
use cas::{Cas, CasError};
use model::{BlobDigest, Digest, DigestFunction, Group};
use policy::{store_time_limit, zones::Zones};

/// The reason why a call to the store has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(transparent)]
    Failed(#[from] CasError),
    #[error("the store did not answer within {} s", .limit.as_secs())]
    NoAnswer { limit: Duration },
}

/// The store of blobs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Store(Cas, Zones);

impl Store {
    pub(crate) fn new(cas: Cas, zones: Zones) -> Self {
        Self(cas, zones)
    }

    /// The store as builds of a group see it: they may name only what their trust zone has.
    pub(crate) fn of_group(&self, group: &Group) -> Self {
        match self.1.sight_of_group(group) {
            Some(sight) => Self(self.0.seen_by(&sight), self.1.clone()),
            None => self.clone(),
        }
    }

    pub(crate) async fn contains(&self, digest: &BlobDigest) -> Result<bool, StoreError> {
        limited(0, Box::pin(self.0.contains(digest))).await
    }

    pub(crate) async fn resolve(
        &self,
        digest: &Digest,
        size_bytes: Option<u64>,
    ) -> Result<BlobDigest, StoreError> {
        limited(0, Box::pin(self.0.resolve(digest, size_bytes))).await
    }

    pub(crate) async fn read_whole(&self, digest: &BlobDigest, max: u64) -> Result<Bytes, StoreError> {
        limited(digest.size.min(max), Box::pin(self.0.read_whole(digest, max))).await
    }

    pub(crate) async fn put_bytes(
        &self,
        function: DigestFunction,
        content: Bytes,
    ) -> Result<BlobDigest, StoreError> {
        limited(content.len() as u64, Box::pin(self.0.put_bytes(function, content))).await
    }
}

/// The result of a call that carries this many bytes of content. Callers box it: its state is large.
async fn limited<T>(bytes: u64, call: impl Future<Output = Result<T, CasError>>) -> Result<T, StoreError> {
    let limit = store_time_limit(bytes);
    match tokio::time::timeout(limit, call).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(StoreError::NoAnswer { limit }),
    }
}
