//! Stores blobs that arrive in pieces.

use bytes::{Bytes, BytesMut};
use model::BlobDigest;
use tokio::task::JoinHandle;

use crate::{
    Cas, CasError, backing::Backing, buffers::Buffer, disk::Temp, layout::Entry, local::Spool,
    put_progress::PutProgress,
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
    buffer: Option<Buffer>,
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

impl Cas {
    /// Starts to write a blob. Refuses at once a blob that is too large and, when the store is full, a new blob.
    pub async fn writer(&self, digest: BlobDigest) -> Result<CasWriter, CasError> {
        self.local().check_size(&digest)?;
        self.admit(&digest).await?;
        if self.local().refuses_blob(digest.size) && !self.contains(&digest).await? {
            return self.local().noted(Err(CasError::Full));
        }
        Ok(CasWriter::new(self, digest, true))
    }

    /// Sends a blob to the backing: the content of `temp`, or else the file of the local tier.
    async fn send_file(&self, digest: &BlobDigest, temp: Option<&Temp>) -> Result<(), CasError> {
        let entry = Entry::blob(*digest);
        match (self.backing(), temp) {
            (Some(Backing::Objects(objects)), Some(temp)) => {
                objects.put_file(&entry, temp.path(), &PutProgress::default()).await
            }
            (Some(Backing::Remote(farm)), temp) => {
                let there = || self.local().path(&entry);
                farm.put_file(*digest, temp.map_or_else(there, |temp| temp.path().to_owned())).await
            }
            (Some(Backing::Objects(_)), None) | (None, _) => Ok(()),
        }
    }
}

impl CasWriter {
    /// `through`: the object store must have the blob before it counts as stored.
    pub(crate) fn new(cas: &Cas, digest: BlobDigest, through: bool) -> Self {
        Self {
            cas: cas.clone(),
            digest,
            taken: 0,
            pending: Vec::new(),
            tail: BytesMut::new(),
            pending_bytes: 0,
            buffer: None,
            state: WriterState::Idle(Spool::new(digest)),
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
    pub async fn finish(self) -> Result<(), CasError> {
        let (cas, digest, through) = (self.cas.clone(), self.digest, self.through);
        self.store().await?;
        // A copy of the backing proves nothing.
        if through { cas.prove(&[digest]).await } else { Ok(()) }
    }

    async fn store(mut self) -> Result<(), CasError> {
        self.close_tail();
        let spool = self.take_spool().await?;
        let (digest, pending) = (self.digest, std::mem::take(&mut self.pending));
        if self.through && self.cas.local().is_small(digest.size) && spool.is_new() {
            return self.cas.put(&digest, pending.concat().into()).await;
        }
        let entry = Entry::blob(digest);
        let direct = self.cas.backing().is_none() || !self.through;
        let verified = self.cas.run_blocking(move |local| match spool.complete(local, &pending)? {
            Some(temp) if direct => local.commit_blob(temp, &entry).map(|()| None),
            temp => Ok(temp),
        });
        let temp = verified.await?;
        if !direct {
            self.cas.send_file(&digest, temp.as_ref()).await?;
        }
        if let Some(temp) = temp {
            self.cas.run_blocking(move |local| local.commit_blob(temp, &entry)).await?;
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
        let buffer = if let Some(buffer) = self.cas.buffers().try_take(bytes) {
            buffer
        } else {
            self.flush().await?;
            self.cas.buffers().take(bytes).await?
        };
        match &mut self.buffer {
            Some(held) => held.merge(buffer),
            None => self.buffer = Some(buffer),
        }
        Ok(())
    }

    /// Passes the pending pieces to blocking threads once they are done with the last batch: one hashes, one writes.
    async fn hand_over(&mut self) -> Result<(), CasError> {
        self.close_tail();
        let (mut hasher, mut file) = self.take_spool().await?.into_parts();
        let (pending, buffer) = (std::mem::take(&mut self.pending), self.buffer.take());
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
            let writing = cas.run_blocking(move |local| {
                file.write(local, &pending)?;
                Ok(file)
            });
            let (hasher, file) = tokio::try_join!(hashing, writing)?;
            drop(buffer);
            Ok(Spool::from_parts(hasher, file))
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
