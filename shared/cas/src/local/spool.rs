//! A blob that is written in pieces: its file and the hash of what is written so far.

use std::{
    fs::File,
    io::{self, IoSlice, Write as _},
};

use bytes::Bytes;
use model::{BlobDigest, BlobHasher};

use super::Local;
use crate::{CasError, disk::Temp, empty_blob::is_empty, layout::BLOB_MODE};

/// A blob that is being written.
#[derive(Debug)]
pub(crate) struct Spool {
    hasher: BlobHasher,
    file: SpoolFile,
}

/// The file of a blob that is being written.
#[derive(Debug)]
pub(crate) struct SpoolFile {
    digest: BlobDigest,
    state: FileState,
}

#[derive(Debug)]
enum FileState {
    NotYet,
    Open(Temp),
    /// The blob is already present: the incoming content is only verified.
    NotNeeded,
}

impl Spool {
    pub(crate) fn new(digest: BlobDigest) -> Self {
        Self { hasher: digest.function.hasher(), file: SpoolFile { digest, state: FileState::NotYet } }
    }

    /// The hash and the file, which may be processed at the same time.
    pub(crate) fn into_parts(self) -> (BlobHasher, SpoolFile) {
        (self.hasher, self.file)
    }

    pub(crate) fn from_parts(hasher: BlobHasher, file: SpoolFile) -> Self {
        Self { hasher, file }
    }

    /// Whether no piece was processed yet.
    pub(crate) fn is_new(&self) -> bool {
        self.hasher.size() == 0
    }

    /// Processes the last pieces and verifies the whole. Returns the file to commit, if one is needed.
    pub(crate) fn complete(mut self, local: &Local, pieces: &[Bytes]) -> Result<Option<Temp>, CasError> {
        for piece in pieces {
            self.hasher.update(piece);
        }
        self.file.write(local, pieces)?;
        let (wanted, found) = (self.file.digest, self.hasher.finish());
        if found != wanted {
            return Err(CasError::Mismatch { wanted, found });
        }
        Ok(match self.file.state {
            FileState::Open(temp) => Some(temp),
            FileState::NotNeeded | FileState::NotYet => None,
        })
    }
}

impl SpoolFile {
    pub(crate) fn write(&mut self, local: &Local, pieces: &[Bytes]) -> Result<(), CasError> {
        if matches!(self.state, FileState::NotYet) {
            let there = is_empty(&self.digest) || local.touch_if_needed(&self.digest, local.now())?;
            self.state =
                if there { FileState::NotNeeded } else { FileState::Open(local.disk.temp(BLOB_MODE)?) };
        }
        match &self.state {
            FileState::Open(temp) => write_all(temp.file(), pieces)
                .map_err(|source| CasError::disk("writing", temp.path(), source)),
            FileState::NotNeeded | FileState::NotYet => Ok(()),
        }
    }
}

/// Writes all pieces with as few calls as possible.
fn write_all(mut file: &File, pieces: &[Bytes]) -> io::Result<()> {
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
