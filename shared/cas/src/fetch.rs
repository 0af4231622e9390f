//! Reads from the backing, through the local tier.

use std::{
    collections::HashSet,
    fs::File,
    io::{Seek as _, SeekFrom},
};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use model::{BlobDigest, DigestFunction};

use crate::{
    Cas, CasError, CasWriter,
    backing::{BATCH_CALLS, farm::Farm},
    layout::Entry,
    local::Local,
    pieces::BlobStream,
};

/// Maximum number of batches in flight.
const BATCHES: usize = 4;

impl Cas {
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
        let read: Vec<Option<(BlobDigest, Bytes)>> = stream::iter(others)
            .map(|digest| async move {
                let content = self.get_from_backing(&digest).await?;
                Ok::<_, CasError>(content.map(|content| (digest, content)))
            })
            .buffered(BATCH_CALLS)
            .try_collect()
            .await?;
        found.extend(read.into_iter().flatten());
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
            .buffered(BATCH_CALLS)
            .try_collect()
            .await?;
        found.extend(fetched.into_iter().filter_map(|(digest, fetched)| fetched.then_some(digest)));
        Ok(found)
    }

    /// Reads a whole blob from the backing, verified and copied to the local tier.
    async fn get_from_backing(&self, digest: &BlobDigest) -> Result<Option<Bytes>, CasError> {
        let Some(backing) = self.backing() else { return Ok(None) };
        let Some(content) = backing.get_whole(digest).await? else {
            self.local().note_absent(digest);
            return Ok(None);
        };
        self.count_backing_reads(1);
        let (digest, kept) = (*digest, content.clone());
        self.run_blocking(move |local| {
            local.check_content(&digest, &kept)?;
            local.keep_copy(&digest, &kept)
        })
        .await?;
        Ok(Some(content))
    }

    /// Copies a blob from the backing to the local tier. Returns whether the backing has it.
    async fn fetch(&self, digest: &BlobDigest) -> Result<bool, CasError> {
        let Some(backing) = self.backing() else { return Ok(false) };
        if self.is_full() {
            return self.local().noted(Err(CasError::Full));
        }
        let Some(mut pieces) = backing.open_at(digest, 0).await? else {
            self.local().note_absent(digest);
            return Ok(false);
        };
        self.count_backing_reads(1);
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
        let Some(backing) = self.backing() else { return Ok(None) };
        match self.fetch(digest).await {
            Ok(false) => return Ok(None),
            Ok(true) => {
                let entry = Entry::blob(*digest);
                let opened = self.run_blocking(move |local| local.open_file(&entry)).await?;
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
        let file = self.run_blocking(move |local| {
            file.seek(SeekFrom::Start(start)).map_err(|source| local.unreadable(&entry, source))?;
            Ok(file)
        });
        Ok(self.stream_open(digest, file.await?, Bytes::new(), length))
    }

    /// Reads small blobs of the farm, verified and copied to the local tier. Returns those that the farm has.
    async fn get_batches(
        &self,
        farm: &Farm,
        digests: &[BlobDigest],
    ) -> Result<Vec<(BlobDigest, Bytes)>, CasError> {
        let found: Vec<Vec<_>> = stream::iter(batches(digests))
            .map(|batch| async move { self.read_batch(farm, batch, Local::keep_copy).await })
            .buffered(BATCHES)
            .try_collect()
            .await?;
        Ok(found.concat())
    }

    /// Copies small blobs to the local tier. Returns those that the farm has.
    async fn fetch_batches(
        &self,
        farm: &Farm,
        digests: &[BlobDigest],
    ) -> Result<HashSet<BlobDigest>, CasError> {
        if !digests.is_empty() && self.is_full() {
            return self.local().noted(Err(CasError::Full));
        }
        let found: Vec<Vec<BlobDigest>> = stream::iter(batches(digests))
            .map(|batch| async move {
                let found = self.read_batch(farm, batch, Local::write_new).await?;
                Ok::<_, CasError>(found.into_iter().map(|(digest, _)| digest).collect())
            })
            .buffered(BATCHES)
            .try_collect()
            .await?;
        Ok(found.concat().into_iter().collect())
    }

    async fn read_batch(
        &self,
        farm: &Farm,
        batch: Vec<BlobDigest>,
        keep: fn(&Local, &BlobDigest, &[u8]) -> Result<(), CasError>,
    ) -> Result<Vec<(BlobDigest, Bytes)>, CasError> {
        let contents = farm.read_batch(&batch).await?;
        let found = self.run_blocking(move |local| {
            let mut found = Vec::with_capacity(batch.len());
            for (digest, content) in batch.into_iter().zip(contents) {
                if let Some(content) = content {
                    local.check_content(&digest, &content)?;
                    keep(local, &digest, &content)?;
                    found.push((digest, content));
                } else {
                    local.note_absent(&digest);
                }
            }
            Ok(found)
        });
        let found = found.await?;
        self.count_backing_reads(found.len() as u64);
        Ok(found)
    }
}

/// Groups digests into batches that fit one answer, each of one function.
fn batches(digests: &[BlobDigest]) -> Vec<Vec<BlobDigest>> {
    let of = |function| {
        let part: Vec<_> = digests.iter().filter(|digest| digest.function == function).copied().collect();
        remote::batches(&part)
    };
    DigestFunction::ALL.into_iter().flat_map(of).collect()
}
