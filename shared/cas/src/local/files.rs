//! Files of blobs for callers that need paths.

use std::io;

use model::BlobDigest;

use super::Local;
use crate::{
    CasError,
    empty_blob::is_empty,
    known::{LastUse, Moment},
    layout::{BLOB_MODE, Entry},
};

const EXECUTABLE_MODE: u32 = 0o555;

/// A blob that is wanted as a file, and whether the file is executable.
pub(crate) type WantedFile = (BlobDigest, bool);

impl Local {
    /// Whether a file is there that was touched recently.
    pub(crate) fn is_file_known(&self, (digest, executable): &WantedFile, now: Moment) -> bool {
        let seen = self.known.fresh(digest, now);
        seen.is_some_and(|seen| seen.local && (seen.twin || !executable))
    }

    /// Ensures that files are there. Returns the missing ones.
    pub(crate) fn have_files(&self, mut wanted: Vec<WantedFile>) -> Result<Vec<WantedFile>, CasError> {
        let mut outcome = Ok(());
        wanted.retain(|(digest, executable)| {
            outcome.is_ok()
                && !self.have_file(digest, *executable).unwrap_or_else(|error| {
                    outcome = Err(error);
                    false
                })
        });
        outcome.map(|()| wanted)
    }

    fn have_file(&self, digest: &BlobDigest, executable: bool) -> Result<bool, CasError> {
        let now = self.known.now();
        if is_empty(digest) {
            self.have_empty(digest)?;
        } else if !self.touch_if_needed(digest, now)? {
            return Ok(false);
        }
        if executable {
            let twin = Entry::twin(*digest);
            // The blob is touched as well: the twin must not outlive it.
            let there = self.disk.touch(&twin)? || self.make_twin(&twin)?;
            if !there || !self.disk.touch(&Entry::blob(*digest))? {
                return Ok(false);
            }
            self.known.note(digest, LastUse { at: now, local: true, twin: true });
        }
        Ok(true)
    }

    /// Creates the executable twin of a blob: the mode belongs to the inode, so an executable needs its own file.
    fn make_twin(&self, twin: &Entry) -> Result<bool, CasError> {
        let Some(mut blob) = self.disk.open_file(&Entry::blob(twin.digest))? else { return Ok(false) };
        let temp = self.disk.temp(EXECUTABLE_MODE)?;
        let copied = io::copy(&mut blob, &mut temp.file());
        copied.map_err(|source| CasError::disk("writing", temp.path(), source))?;
        self.used(self.disk.commit(temp, twin, false)?);
        Ok(true)
    }

    /// Creates the file of the empty blob on demand.
    fn have_empty(&self, digest: &BlobDigest) -> Result<(), CasError> {
        if !self.touch_if_needed(digest, self.known.now())? {
            let temp = self.disk.temp(BLOB_MODE)?;
            self.used(self.disk.commit(temp, &Entry::blob(*digest), false)?);
        }
        Ok(())
    }
}
