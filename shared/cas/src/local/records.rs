//! Records of the folder: results of actions, and chunk lists. These files have no digest to check them against, so
//! each starts with a hash of the rest.

use std::{
    fs::{self, Metadata},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    time::SystemTime,
};

use model::DigestFunction;

use super::Local;
use crate::{
    CasError,
    layout::{BLOB_MODE, Entry},
};

/// Length in bytes of the content hash at the start of a record.
const HASH_BYTES: usize = 32;

/// The record of this content.
pub(crate) fn record_of(content: &[u8]) -> Vec<u8> {
    let mut record = DigestFunction::Sha256.digest(content).hash.to_vec();
    record.extend_from_slice(content);
    record
}

/// The content of a record; none if it is damaged.
pub(crate) fn content_of(record: &[u8]) -> Option<&[u8]> {
    let (hash, content) = record.split_at_checked(HASH_BYTES)?;
    (DigestFunction::Sha256.digest(content).hash == hash).then_some(content)
}

/// Distinguishes one version of a file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: u64,
    length: u64,
    created: Option<SystemTime>,
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self { inode: meta.ino(), length: meta.len(), created: meta.created().ok() }
    }
}

impl Local {
    /// The current version of a file, if it is there. Does not extend its life.
    pub(crate) fn stamp(&self, entry: &Entry) -> Option<Stamp> {
        fs::metadata(self.path(entry)).ok().map(|meta| Stamp::of(&meta))
    }

    /// Returns the content of a record and its version; `None` if it is gone or was damaged and is now removed.
    pub(crate) fn read_record(&self, entry: &Entry) -> Result<Option<(Vec<u8>, Stamp)>, CasError> {
        let failed = |source| self.unreadable(entry, source);
        let Some(mut file) = self.disk.open_file(entry)? else { return Ok(None) };
        let meta = file.metadata().map_err(failed)?;
        let mut hash = [0; HASH_BYTES];
        let mut content = Vec::new();
        let whole = file.read_exact(&mut hash).and_then(|()| file.read_to_end(&mut content));
        match whole {
            Ok(_) if DigestFunction::Sha256.digest(&content).hash == hash => {
                Ok(Some((content, Stamp::of(&meta))))
            }
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(failed(error)),
            Ok(_) | Err(_) => {
                self.remove_damaged(entry);
                Ok(None)
            }
        }
    }

    /// Extends the life of a record and returns its content, if it is there.
    pub(crate) fn touch_record(&self, entry: &Entry) -> Result<Option<Vec<u8>>, CasError> {
        if !self.disk.touch(entry)? {
            return Ok(None);
        }
        Ok(self.read_record(entry)?.map(|(content, _)| content))
    }

    /// Writes a record and replaces the previous one.
    pub(crate) fn write_record(&self, entry: &Entry, record: &[u8]) -> Result<(), CasError> {
        let temp = self.disk.temp_beside(entry, BLOB_MODE, record)?;
        self.used(self.disk.commit(temp, entry, true)?);
        Ok(())
    }

    /// Removes a file. Returns whether it was there.
    pub(crate) fn remove(&self, entry: &Entry) -> Result<bool, CasError> {
        let path = self.path(entry);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(CasError::disk("removing", &path, error)),
        }
    }
}
