//! The backing behind the local tier: an object store, or the store of a farm.

pub(crate) mod farm;
pub(crate) mod objects;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt as _;
use model::BlobDigest;

use crate::{CasConfig, CasError, layout::Entry, pieces::BlobStream};
use farm::Farm;
use objects::Objects;

/// Maximum number of concurrent calls to the backing for one batch.
pub(crate) const BATCH_CALLS: usize = 16;

/// A store that has every blob that counts as stored.
#[derive(Debug)]
pub(crate) enum Backing {
    Objects(Objects),
    Remote(Box<Farm>),
}

impl Backing {
    /// Opens the store at `url`.
    pub(crate) fn open(url: &str, config: &CasConfig) -> Result<Self, CasError> {
        if Farm::is_farm_url(url) {
            return Farm::open(url, config).map(|farm| Self::Remote(Box::new(farm)));
        }
        Objects::open(url, config.retention).map(Self::Objects)
    }

    /// Streams a blob from `start`; `None` if the backing does not have it.
    pub(crate) async fn open_at(
        &self,
        digest: &BlobDigest,
        start: u64,
    ) -> Result<Option<BlobStream>, CasError> {
        match self {
            Self::Objects(objects) => objects.open_at(&Entry::blob(*digest), start).await,
            Self::Remote(farm) => farm.open_at(digest, start).await,
        }
    }

    /// Reads a whole blob, unverified.
    pub(crate) async fn get_whole(&self, digest: &BlobDigest) -> Result<Option<Bytes>, CasError> {
        match self {
            Self::Objects(objects) => objects.get_whole(&Entry::blob(*digest), digest.size).await,
            Self::Remote(farm) => {
                let Some(mut pieces) = farm.open_at(digest, 0).await? else { return Ok(None) };
                let mut content = BytesMut::new();
                while let Some(piece) = pieces.try_next().await? {
                    content.extend_from_slice(&piece);
                    if content.len() as u64 > digest.size {
                        return Err(CasError::TooLong { wanted: *digest });
                    }
                }
                Ok(Some(content.freeze()))
            }
        }
    }
}
