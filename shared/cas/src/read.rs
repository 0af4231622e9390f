//! Reads blobs: whole ones and streams.

use std::{collections::HashMap, fs::File, io};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use model::BlobDigest;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::{
    Cas, CasError,
    buffers::{Buffer, piece_length},
    empty_blob::is_empty,
    layout::Entry,
    pieces::{BlobStream, read_piece},
};

/// Maximum size in bytes of a blob that is read at once.
const WHOLE_BYTES_MAX: u64 = 64 << 20;

impl Cas {
    /// Reads a whole blob of at most 64 MiB and verifies it.
    pub async fn get(&self, digest: &BlobDigest) -> Result<Option<Bytes>, CasError> {
        Ok(self.get_many(std::slice::from_ref(digest)).await?.pop().flatten())
    }

    /// Reads whole blobs, in the order of the request. The caller bounds their total size.
    pub async fn get_many(&self, digests: &[BlobDigest]) -> Result<Vec<Option<Bytes>>, CasError> {
        let hidden = self.hidden(digests).await?;
        let local = self.local();
        let now = local.now();
        let mut found: HashMap<BlobDigest, Bytes> = HashMap::new();
        let mut wanted = Vec::new();
        let mut contents = Vec::with_capacity(digests.len());
        for digest in digests {
            if digest.size > WHOLE_BYTES_MAX {
                return Err(CasError::TooLargeAtOnce { digest: *digest, max: WHOLE_BYTES_MAX });
            }
            if hidden.contains(digest) {
                contents.push(None);
                continue;
            }
            let content = if is_empty(digest) { Some(Bytes::new()) } else { local.recall(digest, now) };
            if content.is_none() {
                wanted.push(*digest);
            }
            contents.push(content);
        }
        if wanted.is_empty() {
            return Ok(contents);
        }
        wanted.sort_unstable();
        wanted.dedup();
        let loaded = self.run_blocking(move |local| local.load_many(&wanted)).await?;
        let mut absent = Vec::new();
        for (digest, content) in loaded {
            match content {
                Some(content) => drop(found.insert(digest, content)),
                None => absent.push(digest),
            }
        }
        if !absent.is_empty() {
            found.extend(self.get_many_from_backing(absent).await?);
        }
        for (digest, content) in digests.iter().zip(&mut contents).filter(|(_, content)| content.is_none()) {
            *content = found.get(digest).cloned();
        }
        Ok(contents)
    }

    /// Reads the content of a blob from `offset`, at most `limit` bytes, in pieces. Beyond its
    /// end the stream is empty.
    pub async fn read(
        &self,
        digest: &BlobDigest,
        offset: u64,
        limit: Option<u64>,
    ) -> Result<Option<BlobStream>, CasError> {
        let start = offset.min(digest.size);
        let left = (digest.size - start).min(limit.unwrap_or(u64::MAX));
        if is_empty(digest) {
            return Ok(Some(stream::empty().boxed()));
        }
        if !self.sees(digest).await? {
            return Ok(None);
        }
        if self.local().is_small(digest.size) {
            return Ok(self.get(digest).await?.map(|content| slice(&content, start, left)));
        }
        let (entry, buffer) = (Entry::blob(*digest), self.buffers().for_piece());
        let length = piece_length(buffer.as_ref(), left);
        let opened = self.run_blocking(move |local| local.open_at(&entry, start, length)).await?;
        drop(buffer);
        match opened {
            Some((file, first)) => {
                let left = left - first.len() as u64;
                Ok(Some(self.stream_open(digest, file, first, left)))
            }
            None => self.read_from_backing(digest, start, left).await,
        }
    }

    /// Streams `first`, then the next `left` bytes of `file`.
    pub(crate) fn stream_open(&self, digest: &BlobDigest, file: File, first: Bytes, left: u64) -> BlobStream {
        let reader = Reader { cas: self.clone(), digest: *digest, file: Some(file), left, ahead: None };
        reader.stream(first)
    }

    /// Hashes a blob of the local tier again and removes it if it is damaged. Returns whether it is there and intact.
    pub async fn verify(&self, digest: &BlobDigest) -> Result<bool, CasError> {
        if is_empty(digest) {
            return Ok(true);
        }
        let wanted = *digest;
        let sound = self.run_blocking(move |local| local.verify(&wanted)).await?;
        if !sound {
            self.forget(digest);
        }
        Ok(sound)
    }
}

fn slice(content: &Bytes, start: u64, length: u64) -> BlobStream {
    let start = usize::try_from(start).unwrap_or(usize::MAX).min(content.len());
    let end = start.saturating_add(usize::try_from(length).unwrap_or(usize::MAX)).min(content.len());
    let piece = content.slice(start..end);
    stream::iter((!piece.is_empty()).then_some(Ok(piece))).boxed()
}

/// A blob that is being read: the next piece is read while the consumer handles the last one.
struct Reader {
    cas: Cas,
    digest: BlobDigest,
    file: Option<File>,
    left: u64,
    ahead: Option<Ahead>,
}

/// A piece that is being read, and its share of the buffer space.
struct Ahead {
    piece: JoinHandle<(File, io::Result<Vec<u8>>)>,
    _buffer: Option<Buffer>,
}

impl Reader {
    fn stream(mut self, first: Bytes) -> BlobStream {
        self.read_ahead(false);
        let rest = stream::unfold(self, |mut reader| async move {
            let piece = reader.next().await?;
            Some((piece, reader))
        });
        let first = stream::iter((!first.is_empty()).then_some(Ok(first)));
        first.chain(rest).boxed()
    }

    /// Starts to read the next piece, if there is one and there is buffer space for it; if the piece is `needed` now,
    /// it is read without buffer space too.
    fn read_ahead(&mut self, needed: bool) {
        let buffer = self.cas.buffers().for_piece();
        if self.left == 0 || (buffer.is_none() && !needed) {
            return;
        }
        if let Some(file) = self.file.take() {
            let length = piece_length(buffer.as_ref(), self.left);
            self.left -= length;
            let piece = spawn_blocking(move || {
                let piece = read_piece(&file, length);
                (file, piece)
            });
            self.ahead = Some(Ahead { piece, _buffer: buffer });
        }
    }

    async fn next(&mut self) -> Option<Result<Bytes, CasError>> {
        if self.ahead.is_none() {
            self.read_ahead(true);
        }
        let ahead = self.ahead.take()?;
        let Ok((file, piece)) = ahead.piece.await else { return Some(Err(CasError::Stopping)) };
        match piece {
            Ok(piece) => {
                self.file = Some(file);
                self.read_ahead(false);
                Some(Ok(piece.into()))
            }
            // The stream ends after the error, since its file is gone.
            Err(source) => Some(Err(self.cas.local().unreadable(&Entry::blob(self.digest), source))),
        }
    }
}
