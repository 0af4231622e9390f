//! Stores verified blobs in the folder.

use std::collections::HashSet;

use bytes::Bytes;
use model::BlobDigest;

use super::Local;
use crate::{
    CasError,
    disk::Temp,
    empty_blob::is_empty,
    layout::{BLOB_MODE, Entry},
};

/// Whether a verified blob must be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needed {
    Yes,
    No,
}

impl Local {
    /// Stores blobs. Returns the outcome of each, in their order.
    pub(crate) fn put_many(&self, blobs: &[(BlobDigest, Bytes)]) -> Vec<Result<(), CasError>> {
        let mut used = 0;
        let outcomes = blobs
            .iter()
            .zip(self.check_many(blobs))
            .map(|((digest, content), needed)| {
                let written = needed.and_then(|needed| match needed {
                    Needed::No => Ok(0),
                    Needed::Yes => self.write(digest, content),
                });
                used += self.noted(written)?;
                Ok(())
            })
            .collect();
        self.used(used);
        outcomes
    }

    /// Verifies blobs and returns which of them must be written.
    pub(crate) fn check_many(&self, blobs: &[(BlobDigest, Bytes)]) -> Vec<Result<Needed, CasError>> {
        let mut outcomes: Vec<_> =
            blobs.iter().map(|(digest, content)| self.check(digest, content)).collect();
        let asked = |outcome: &Result<Needed, CasError>| matches!(outcome, Ok(Needed::Yes));
        let digests: Vec<BlobDigest> = blobs
            .iter()
            .zip(&outcomes)
            .filter_map(|((digest, _), outcome)| asked(outcome).then_some(*digest))
            .collect();
        let absent: HashSet<BlobDigest> = match self.touch_blobs(&digests) {
            Ok(absent) => absent.into_iter().collect(),
            // The write will fail as well and report the error.
            Err(_) => digests.into_iter().collect(),
        };
        for ((digest, _), outcome) in blobs.iter().zip(&mut outcomes).filter(|(_, outcome)| asked(outcome)) {
            *outcome = match (absent.contains(digest), self.refuses_blob(digest.size)) {
                (true, true) => Err(CasError::Full),
                (true, false) => Ok(Needed::Yes),
                (false, _) => Ok(Needed::No),
            };
        }
        outcomes
    }

    /// Verifies a blob and returns whether it may have to be written.
    fn check(&self, digest: &BlobDigest, content: &[u8]) -> Result<Needed, CasError> {
        self.check_content(digest, content)?;
        let there = is_empty(digest) || self.known.fresh(digest, self.known.now()).is_some();
        Ok(if there { Needed::No } else { Needed::Yes })
    }

    pub(crate) fn check_content(&self, digest: &BlobDigest, content: &[u8]) -> Result<(), CasError> {
        self.check_size(digest)?;
        let found = digest.function.digest(content);
        if found == *digest { Ok(()) } else { Err(CasError::Mismatch { wanted: *digest, found }) }
    }

    pub(crate) fn check_size(&self, digest: &BlobDigest) -> Result<(), CasError> {
        let max = self.blob_bytes_max;
        if digest.size > max { Err(CasError::TooLarge { digest: *digest, max }) } else { Ok(()) }
    }

    /// Writes a verified blob. Returns the bytes of disk that it uses.
    fn write(&self, digest: &BlobDigest, content: &[u8]) -> Result<u64, CasError> {
        let at = self.known.now();
        let entry = Entry::blob(*digest);
        let temp = self.disk.temp_beside(&entry, BLOB_MODE, content)?;
        let used = self.disk.commit(temp, &entry, false)?;
        self.known.note_local(digest, at);
        self.stored(digest, used);
        self.memory.insert(digest, content);
        Ok(used)
    }

    /// Writes a verified blob that was missing.
    pub(crate) fn write_new(&self, digest: &BlobDigest, content: &[u8]) -> Result<(), CasError> {
        if !is_empty(digest) {
            self.used(self.write(digest, content)?);
        }
        Ok(())
    }

    /// Writes a copy of a blob of another store. A full folder is not an error.
    pub(crate) fn keep_copy(&self, digest: &BlobDigest, content: &[u8]) -> Result<(), CasError> {
        if is_empty(digest) || self.is_full() || self.touch_if_needed(digest, self.known.now())? {
            return Ok(());
        }
        match self.noted(self.write(digest, content)) {
            Ok(used) => self.used(used),
            Err(CasError::Full) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

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
