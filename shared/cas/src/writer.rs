//! Stores blobs that arrive in pieces.

use std::{
    io::{self, IoSlice, Write as _},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use model::{BlobDigest, BlobHasher};
use tokio::{sync::OwnedSemaphorePermit, task::JoinHandle};

use crate::{
    Cas, CasError,
    backing::Backing,
    disk::Temp,
    empty_blob::is_empty,
    layout::{BLOB_MODE, Entry},
    store::Inner,
};

/// Number of bytes hashed and written in one batch.
const BATCH_BYTES: usize = 1 << 20;
/// Pieces smaller than this are copied together.
const TINY_BYTES: usize = 4 << 10;

/// A blob that is being written. It is invisible until [`CasWriter::finish`]; if dropped before, it is discarded.
#[derive(Debug)]
pub struct CasWriter {
    cas: Cas,
    digest: BlobDigest,
    taken: u64,
    pending: Vec<Bytes>,
    tail: BytesMut,
    pending_bytes: usize,
    permit: Option<OwnedSemaphorePermit>,
    state: WriterState,
    through: bool,
}

/// The owner of the file: the writer, or the thread that hashes and writes the last batch.
#[derive(Debug)]
enum WriterState {
    Idle(Spool),
    Busy(JoinHandle<Result<Spool, CasError>>),
    Failed,
}

/// The file and the hash of what is written so far.
#[derive(Debug)]
struct Spool {
    hasher: BlobHasher,
    file: SpoolFile,
}

#[derive(Debug)]
enum SpoolFile {
    NotYet,
    Open(Temp),
    /// The blob is already present: the incoming content is only verified.
    NotNeeded,
}

impl Cas {
    /// Starts to write a blob. Refuses at once a blob that is too large and, when the store is full, a new blob.
    pub async fn writer(&self, digest: BlobDigest) -> Result<CasWriter, CasError> {
        self.inner.check_size(&digest)?;
        if self.inner.refuses(digest.size) && self.inner.backing.is_none() && !self.contains(&digest).await? {
            return Err(CasError::Full);
        }
        Ok(CasWriter::new(self, digest, true))
    }

    /// Sends a blob to the backing: the content of `temp`, or else the file of the local tier.
    async fn send_file(&self, digest: &BlobDigest, temp: Option<&Temp>) -> Result<(), CasError> {
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
}

impl CasWriter {
    /// `through`: the object store must have the blob before it counts as stored.
    pub(crate) fn new(cas: &Cas, digest: BlobDigest, through: bool) -> Self {
        let spool = Spool { hasher: digest.function.hasher(), file: SpoolFile::NotYet };
        Self {
            cas: cas.clone(),
            digest,
            taken: 0,
            pending: Vec::new(),
            tail: BytesMut::new(),
            pending_bytes: 0,
            permit: None,
            state: WriterState::Idle(spool),
            through,
        }
    }

    /// The digest that the writer was opened for.
    pub fn digest(&self) -> &BlobDigest {
        &self.digest
    }

    /// Bytes accepted so far.
    pub fn written(&self) -> u64 {
        self.taken
    }

    /// Accepts the next piece, and waits while the disk is behind. Fails at once on more
    /// bytes than the digest states.
    pub async fn write(&mut self, piece: Bytes) -> Result<(), CasError> {
        self.taken = self.taken.saturating_add(piece.len() as u64);
        if self.taken > self.digest.size {
            self.state = WriterState::Failed;
            return Err(CasError::TooLong { wanted: self.digest });
        }
        if piece.is_empty() {
            return Ok(());
        }
        self.make_room(piece.len()).await?;
        self.pending_bytes += piece.len();
        if piece.len() < TINY_BYTES {
            self.tail.extend_from_slice(&piece);
        } else {
            self.close_tail();
            self.pending.push(piece);
        }
        if self.pending_bytes >= BATCH_BYTES { self.hand_over().await } else { Ok(()) }
    }

    /// Verifies the blob and makes it visible.
    pub async fn finish(mut self) -> Result<(), CasError> {
        self.close_tail();
        let spool = self.take_spool().await?;
        let (digest, pending) = (self.digest, std::mem::take(&mut self.pending));
        if self.through && self.cas.inner.is_small(digest.size) && spool.hasher.size() == 0 {
            return self.cas.put(&digest, pending.concat().into()).await;
        }
        let entry = Entry::blob(digest);
        let direct = self.cas.inner.backing.is_none() || !self.through;
        let verified =
            self.cas.run_blocking(move |inner| match spool.complete(inner, &digest, &pending)? {
                Some(temp) if direct => inner.commit_blob(temp, &entry).map(|()| None),
                temp => Ok(temp),
            });
        let temp = verified.await?;
        if !direct {
            self.cas.send_file(&digest, temp.as_ref()).await?;
        }
        if let Some(temp) = temp {
            self.cas.run_blocking(move |inner| inner.commit_blob(temp, &entry)).await?;
        }
        Ok(())
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.pending.push(self.tail.split().freeze());
        }
    }

    /// Reserves `bytes` of the store's buffer space. A writer that must wait for it holds none while it waits.
    async fn make_room(&mut self, bytes: usize) -> Result<(), CasError> {
        let budget = Arc::clone(&self.cas.inner.budget);
        let max = self.cas.inner.config.in_flight_bytes.max(4 << 20);
        let bytes = u32::try_from(bytes).unwrap_or(max).min(max);
        let permit = if let Ok(permit) = Arc::clone(&budget).try_acquire_many_owned(bytes) {
            permit
        } else {
            self.flush().await?;
            budget.acquire_many_owned(bytes).await.map_err(|_| CasError::Stopping)?
        };
        match &mut self.permit {
            Some(held) => held.merge(permit),
            None => self.permit = Some(permit),
        }
        Ok(())
    }

    /// Passes the pending pieces to blocking threads once they are done with the last batch: one hashes, one writes.
    async fn hand_over(&mut self) -> Result<(), CasError> {
        self.close_tail();
        let Spool { mut hasher, mut file } = self.take_spool().await?;
        let (digest, pending, permit) = (self.digest, std::mem::take(&mut self.pending), self.permit.take());
        self.pending_bytes = 0;
        let cas = self.cas.clone();
        self.state = WriterState::Busy(tokio::spawn(async move {
            let same = pending.clone();
            let hashing = cas.run_blocking(move |_| {
                for piece in &same {
                    hasher.update(piece);
                }
                Ok(hasher)
            });
            let writing = cas.run_blocking(move |inner| {
                file.write(inner, &digest, &pending)?;
                Ok(file)
            });
            let (hasher, file) = tokio::try_join!(hashing, writing)?;
            drop(permit);
            Ok(Spool { hasher, file })
        }));
        Ok(())
    }

    /// Writes everything accepted so far to the disk and frees its memory.
    pub async fn flush(&mut self) -> Result<(), CasError> {
        if self.pending_bytes > 0 {
            self.hand_over().await?;
        }
        let spool = self.take_spool().await?;
        self.state = WriterState::Idle(spool);
        Ok(())
    }

    async fn take_spool(&mut self) -> Result<Spool, CasError> {
        match std::mem::replace(&mut self.state, WriterState::Failed) {
            WriterState::Idle(spool) => Ok(spool),
            WriterState::Busy(work) => work.await.map_err(|_| CasError::Stopping)?,
            WriterState::Failed if self.taken > self.digest.size => {
                Err(CasError::TooLong { wanted: self.digest })
            }
            WriterState::Failed => Err(CasError::Stopping),
        }
    }
}

impl SpoolFile {
    fn write(&mut self, inner: &Inner, digest: &BlobDigest, pieces: &[Bytes]) -> Result<(), CasError> {
        if matches!(self, Self::NotYet) {
            let there = is_empty(digest) || inner.touch_if_needed(digest, inner.known.now())?;
            *self = if there { Self::NotNeeded } else { Self::Open(inner.disk.temp(BLOB_MODE)?) };
        }
        match self {
            Self::Open(temp) => {
                write_all(&temp.file, pieces).map_err(|source| CasError::disk("writing", temp.path(), source))
            }
            Self::NotNeeded | Self::NotYet => Ok(()),
        }
    }
}

impl Spool {
    /// Processes the last pieces and verifies the whole. Returns the file to commit, if one is needed.
    fn complete(
        mut self,
        inner: &Inner,
        digest: &BlobDigest,
        pieces: &[Bytes],
    ) -> Result<Option<Temp>, CasError> {
        for piece in pieces {
            self.hasher.update(piece);
        }
        self.file.write(inner, digest, pieces)?;
        let found = self.hasher.finish();
        if found != *digest {
            return Err(CasError::Mismatch { wanted: *digest, found });
        }
        Ok(match self.file {
            SpoolFile::Open(temp) => Some(temp),
            SpoolFile::NotNeeded | SpoolFile::NotYet => None,
        })
    }
}

impl Inner {
    /// Makes a verified file visible.
    pub(crate) fn commit_blob(&self, temp: Temp, entry: &Entry) -> Result<(), CasError> {
        let at = self.known.now();
        let used = self.disk.commit(temp, entry, false)?;
        self.known.note_local(&entry.digest, at);
        self.stored(&entry.digest, used);
        self.used(used);
        Ok(())
    }
}

/// Writes all pieces with as few calls as possible.
fn write_all(mut file: &std::fs::File, pieces: &[Bytes]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut left = slices.as_mut_slice();
    while !left.is_empty() {
        match file.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut left, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
