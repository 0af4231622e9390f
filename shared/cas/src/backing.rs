//! The backing behind the local tier: an object store, or the store of a farm.

pub(crate) mod farm;
pub(crate) mod objects;

use std::{
    collections::HashSet,
    fs::File,
    io::{Seek as _, SeekFrom},
};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use model::BlobDigest;

use crate::{
    Cas, CasConfig, CasError, CasWriter, disk::Temp, layout::Entry, read::BlobStream, store::add,
    write::UPLOADS,
};
use farm::Farm;
use objects::Objects;

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
        Objects::open(url).map(Self::Objects)
    }

    /// Streams a blob from `start`; `None` if the backing does not have it.
    async fn open_at(&self, digest: &BlobDigest, start: u64) -> Result<Option<BlobStream>, CasError> {
        match self {
            Self::Objects(objects) => objects.open_at(&Entry::blob(*digest), start).await,
            Self::Remote(farm) => farm.open_at(digest, start).await,
        }
    }

    /// Reads a whole blob, unverified.
    async fn get_whole(&self, digest: &BlobDigest) -> Result<Option<Bytes>, CasError> {
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

impl Cas {
    pub(crate) fn backing(&self) -> Option<&Backing> {
        self.inner.backing.as_ref()
    }

    /// The object store, if the backing is one.
    pub(crate) fn objects(&self) -> Option<&Objects> {
        match &self.inner.backing {
            Some(Backing::Objects(objects)) => Some(objects),
            Some(Backing::Remote(_)) | None => None,
        }
    }

    /// The farm, if the backing is one.
    pub(crate) fn farm(&self) -> Option<&Farm> {
        match &self.inner.backing {
            Some(Backing::Remote(farm)) => Some(farm),
            Some(Backing::Objects(_)) | None => None,
        }
    }

    /// Sends a blob to the backing: the content of `temp`, or else the file of the local tier.
    pub(crate) async fn send_file(&self, digest: &BlobDigest, temp: Option<&Temp>) -> Result<(), CasError> {
        let entry = Entry::blob(*digest);
        match (&self.inner.backing, temp) {
            (Some(Backing::Objects(objects)), Some(temp)) => {
                objects.put_file(&entry, temp.path(), digest.size).await
            }
            (Some(Backing::Remote(farm)), temp) => {
                let there = || self.inner.disk.layout.path(&entry);
                farm.put_file(*digest, temp.map_or_else(there, |temp| temp.path().to_owned())).await
            }
            (Some(Backing::Objects(_)), None) | (None, _) => Ok(()),
        }
    }

    /// Reads whole blobs from the backing, verified and copied to the local tier. Returns those that the backing has.
    pub(crate) async fn get_many_from_backing(
        &self,
        digests: Vec<BlobDigest>,
    ) -> Result<Vec<(BlobDigest, Bytes)>, CasError> {
        let (small, others) = match self.farm() {
            Some(_) => digests.into_iter().partition(remote::is_small),
            None => (Vec::new(), digests),
        };
        let mut found = Vec::with_capacity(small.len());
        if let Some(farm) = self.farm() {
            found = self.get_batches(farm, &small).await?;
        }
        for digest in others {
            found.extend(self.get_from_backing(&digest).await?.map(|content| (digest, content)));
        }
        Ok(found)
    }

    /// Copies blobs from the backing to the local tier. Returns those that the backing has.
    pub(crate) async fn fetch_many(&self, digests: &[BlobDigest]) -> Result<HashSet<BlobDigest>, CasError> {
        let (small, others): (Vec<_>, Vec<_>) = match self.farm() {
            Some(_) => digests.iter().partition(|digest| remote::is_small(digest)),
            None => (Vec::new(), digests.to_vec()),
        };
        let mut found = HashSet::with_capacity(digests.len());
        if let Some(farm) = self.farm() {
            found = self.fetch_batches(farm, &small).await?;
        }
        let fetched: Vec<(BlobDigest, bool)> = stream::iter(others)
            .map(|digest| async move { Ok::<_, CasError>((digest, self.fetch(&digest).await?)) })
            .buffered(UPLOADS)
            .try_collect()
            .await?;
        found.extend(fetched.into_iter().filter_map(|(digest, fetched)| fetched.then_some(digest)));
        Ok(found)
    }

    /// Reads a whole blob from the backing, verified and copied to the local tier.
    async fn get_from_backing(&self, digest: &BlobDigest) -> Result<Option<Bytes>, CasError> {
        let Some(backing) = &self.inner.backing else { return Ok(None) };
        let Some(content) = backing.get_whole(digest).await? else {
            self.inner.known.forget(digest);
            return Ok(None);
        };
        add(&self.inner.counters.backing_reads, 1);
        let (digest, kept) = (*digest, content.clone());
        self.run_blocking(move |inner| {
            inner.check_content(&digest, &kept)?;
            inner.keep_copy(&digest, &kept)
        })
        .await?;
        Ok(Some(content))
    }

    /// Copies a blob from the backing to the local tier. Returns whether the backing has it.
    async fn fetch(&self, digest: &BlobDigest) -> Result<bool, CasError> {
        let Some(backing) = &self.inner.backing else { return Ok(false) };
        if self.inner.is_full() {
            return Err(CasError::Full);
        }
        let Some(mut pieces) = backing.open_at(digest, 0).await? else {
            self.inner.known.forget(digest);
            return Ok(false);
        };
        add(&self.inner.counters.backing_reads, 1);
        let mut writer = CasWriter::new(self, *digest, false);
        while let Some(piece) = pieces.next().await {
            writer.write(piece?).await?;
        }
        writer.finish().await?;
        Ok(true)
    }

    /// Reads part of a blob from the backing: through the local tier, or directly when that is full.
    pub(crate) async fn read_from_backing(
        &self,
        digest: &BlobDigest,
        start: u64,
        length: u64,
    ) -> Result<Option<BlobStream>, CasError> {
        let Some(backing) = &self.inner.backing else { return Ok(None) };
        match self.fetch(digest).await {
            Ok(false) => return Ok(None),
            Ok(true) => {
                let entry = Entry::blob(*digest);
                let opened = self.run_blocking(move |inner| inner.disk.open_file(&entry)).await?;
                return match opened {
                    Some(file) => self.stream_file(digest, file, start, length).await.map(Some),
                    None => Ok(None),
                };
            }
            Err(CasError::Full) => {}
            Err(error) => return Err(error),
        }
        let Some(pieces) = backing.open_at(digest, start).await? else { return Ok(None) };
        let limited = pieces.scan(length, |left, piece| {
            let piece = piece.map(|mut piece| {
                piece.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                piece
            });
            let more = *left > 0;
            *left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
            futures::future::ready(more.then_some(piece))
        });
        Ok(Some(limited.boxed()))
    }

    async fn stream_file(
        &self,
        digest: &BlobDigest,
        mut file: File,
        start: u64,
        length: u64,
    ) -> Result<BlobStream, CasError> {
        let entry = Entry::blob(*digest);
        let file = self.run_blocking(move |inner| {
            file.seek(SeekFrom::Start(start)).map_err(|source| inner.unreadable(&entry, source))?;
            Ok(file)
        });
        Ok(self.stream_open(digest, file.await?, Bytes::new(), length))
    }
}
