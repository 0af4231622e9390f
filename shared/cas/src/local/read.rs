//! Reads blobs of the folder.

use std::{
    fs::File,
    io::{Seek as _, SeekFrom},
    time::Duration,
};

use bytes::Bytes;
use model::BlobDigest;

use super::Local;
use crate::{
    CasError,
    known::Moment,
    layout::Entry,
    pieces::{PIECE_BYTES, read_piece, read_some},
};

impl Local {
    /// Returns a small blob from memory, if it was touched recently.
    pub(crate) fn recall(&self, digest: &BlobDigest, now: Moment) -> Option<Bytes> {
        if !self.is_small(digest.size) {
            return None;
        }
        let content = self.known.fresh(digest, now).and_then(|_| self.memory.get(digest));
        self.memory.count_read(content.is_some());
        content
    }

    /// Reads whole blobs and verifies them.
    pub(crate) fn load_many(
        &self,
        digests: &[BlobDigest],
    ) -> Result<Vec<(BlobDigest, Option<Bytes>)>, CasError> {
        digests.iter().map(|digest| Ok((*digest, self.load(digest)?))).collect()
    }

    /// Reads a whole blob and verifies it.
    fn load(&self, digest: &BlobDigest) -> Result<Option<Bytes>, CasError> {
        let entry = Entry::blob(*digest);
        if let Some(content) = self.memory.get(digest) {
            return Ok(self.touch_if_needed(digest, self.known.now())?.then_some(content));
        }
        let Some(file) = self.open_used(&entry)? else {
            self.known.forget(digest);
            return Ok(None);
        };
        let content = read_piece(&file, digest.size).map_err(|source| self.unreadable(&entry, source))?;
        if digest.function.digest(&content) != *digest {
            self.remove_damaged(&entry);
            self.known.forget(digest);
            return Ok(None);
        }
        self.memory.insert(digest, &content);
        Ok(Some(content.into()))
    }

    /// Opens a file for reading.
    pub(crate) fn open_file(&self, entry: &Entry) -> Result<Option<File>, CasError> {
        self.disk.open_file(entry)
    }

    /// Opens the file of a blob for reading and extends its life, unless that was done recently, by any process.
    fn open_used(&self, entry: &Entry) -> Result<Option<File>, CasError> {
        let now = self.known.now();
        if self.known.fresh(&entry.digest, now).is_some_and(|seen| seen.local) {
            return self.disk.open_file(entry);
        }
        let at = |age: Duration| now.checked_sub(u64::try_from(age.as_millis()).ok()?);
        let is_fresh = |age| at(age).is_some_and(|at| self.known.is_fresh(at, now));
        let Some((file, age)) = self.disk.open_and_touch(entry, is_fresh)? else { return Ok(None) };
        self.known.note_local(&entry.digest, at(age).unwrap_or(now));
        Ok(Some(file))
    }

    /// Opens a file and reads `length` bytes from `start`.
    pub(crate) fn open_at(
        &self,
        entry: &Entry,
        start: u64,
        length: u64,
    ) -> Result<Option<(File, Bytes)>, CasError> {
        let Some(mut file) = self.open_used(entry)? else {
            self.known.forget(&entry.digest);
            return Ok(None);
        };
        let first = file.seek(SeekFrom::Start(start)).and_then(|_| read_piece(&file, length));
        Ok(Some((file, first.map_err(|source| self.unreadable(entry, source))?.into())))
    }

    /// Hashes a blob again and removes it if it is damaged. Returns whether it is there and intact.
    pub(crate) fn verify(&self, digest: &BlobDigest) -> Result<bool, CasError> {
        let entry = Entry::blob(*digest);
        let Some(file) = self.disk.open_file(&entry)? else { return Ok(false) };
        let mut hasher = digest.function.hasher();
        loop {
            let piece = read_some(&file, u64::from(PIECE_BYTES)).map_err(|e| self.unreadable(&entry, e))?;
            if piece.is_empty() {
                break;
            }
            hasher.update(&piece);
        }
        let sound = hasher.finish() == *digest;
        if !sound {
            self.remove_damaged(&entry);
        }
        Ok(sound)
    }
}
