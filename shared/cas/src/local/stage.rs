//! Files that become blobs: hashed, and moved or copied into `tmp/` before they are visible.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown},
    path::Path,
};

use hashing::{CopyError, copy_reader, hash_reader};
use model::{BlobDigest, DigestFunction};
use nix::{errno::Errno, fcntl::OFlag, unistd::geteuid};

use super::Local;
use crate::{
    CasError, Given,
    disk::Temp,
    empty_blob::is_empty,
    layout::{BLOB_MODE, Entry},
    put_progress::{CountedReader, PutProgress},
};

/// A file that was hashed. If the store does not have the blob yet, the file waits in `tmp/`.
#[derive(Debug)]
pub(crate) struct Staged {
    digest: BlobDigest,
    temp: Option<Temp>,
}

impl Staged {
    pub(crate) fn digest(&self) -> BlobDigest {
        self.digest
    }

    /// The file, while it is not visible.
    pub(crate) fn temp(&self) -> Option<&Temp> {
        self.temp.as_ref()
    }
}

impl Local {
    /// Hashes a file, and moves or copies it into `tmp/` if the store does not have the blob.
    pub(crate) fn stage_file(
        &self,
        function: DigestFunction,
        path: &Path,
        given: Given,
        progress: &PutProgress,
    ) -> Result<Staged, CasError> {
        let file =
            if given == Given::Watched { regular(path, ::disk::open_file(path))? } else { open(path)? };
        let meta = file.metadata().map_err(|source| unreadable(path, source))?;
        self.check_size(&BlobDigest { function, hash: [0; 32], size: meta.len() })?;
        if meta.len() == 0 {
            return Ok(Staged { digest: function.empty(), temp: None });
        }
        let ours = meta.uid() == geteuid().as_raw();
        if given == Given::Away && meta.nlink() == 1 && (ours || geteuid().is_root()) {
            match self.disk.move_to_temp(path, file) {
                Ok(temp) => return self.adopt(function, path, temp, (meta.ino(), ours)),
                // Most likely the file is on another file system.
                Err(_) => return self.copy(function, path, &open(path)?, progress),
            }
        }
        self.copy(function, path, &file, progress)
    }

    /// Changes the owner of a file that was moved into `tmp/` to the store's, and hashes it. On failure
    /// the file is moved back.
    fn adopt(
        &self,
        function: DigestFunction,
        path: &Path,
        temp: Temp,
        (inode, ours): (u64, bool),
    ) -> Result<Staged, CasError> {
        match take_ownership(function, &temp, inode, ours) {
            Ok(Some(digest)) => match self.is_needed(&digest) {
                Ok(true) => Ok(Staged { digest, temp: Some(temp) }),
                Ok(false) => Ok(Staged { digest, temp: None }),
                Err(error) => {
                    temp.give_back(path);
                    Err(error)
                }
            },
            Ok(None) => {
                temp.give_back(path);
                self.copy(function, path, &open(path)?, &PutProgress::default())
            }
            Err(source) => {
                temp.give_back(path);
                Err(CasError::disk("taking ownership of", path, source))
            }
        }
    }

    /// The digest of a regular file of at most `max` bytes.
    pub(crate) fn digest_of(
        &self,
        function: DigestFunction,
        path: &Path,
        max: u64,
    ) -> Result<BlobDigest, CasError> {
        let limited = open(path)?.take(max.saturating_add(1));
        let digest = hash_reader(limited, function).map_err(|source| unreadable(path, source))?;
        self.check_size(&digest)?;
        Ok(digest)
    }

    /// Copies a file into `tmp/` and hashes the bytes that it copies.
    fn copy(
        &self,
        function: DigestFunction,
        path: &Path,
        file: &File,
        progress: &PutProgress,
    ) -> Result<Staged, CasError> {
        // A full store accepts no copies, but may have the blob already.
        let temp = if self.refuses_blob(0) { None } else { Some(self.disk.temp(BLOB_MODE)?) };
        let max = self.blob_bytes_max;
        let limited = CountedReader { reader: file.take(max.saturating_add(1)), progress };
        let copied = match &temp {
            Some(temp) => copy_reader(limited, temp.file(), function),
            None => copy_reader(limited, io::sink(), function),
        };
        let digest = copied.map_err(|error| match error {
            CopyError::Read(source) => unreadable(path, source),
            CopyError::Write(source) => {
                CasError::disk("writing", temp.as_ref().map_or(path, Temp::path), source)
            }
        })?;
        if digest.size > max {
            return Err(CasError::TooLarge { digest, max });
        }
        let needed = self.is_needed(&digest)?;
        Ok(Staged { digest, temp: temp.filter(|_| needed) })
    }

    /// Whether a blob must be stored. Fails if that is necessary and the store is full.
    fn is_needed(&self, digest: &BlobDigest) -> Result<bool, CasError> {
        let now = self.known.now();
        if is_empty(digest) || self.known.fresh(digest, now).is_some() || self.touch_if_needed(digest, now)? {
            return Ok(false);
        }
        if self.refuses_blob(digest.size) { Err(CasError::Full) } else { Ok(true) }
    }

    /// Makes a staged file visible.
    pub(crate) fn keep_staged(&self, mut staged: Staged) -> Result<Staged, CasError> {
        if let Some(temp) = staged.temp.take() {
            self.commit_blob(temp, &Entry::blob(staged.digest))?;
        }
        Ok(staged)
    }
}

/// Returns the digest of a moved file; `None` if it is not the file that was opened or has another name.
fn take_ownership(
    function: DigestFunction,
    temp: &Temp,
    inode: u64,
    ours: bool,
) -> io::Result<Option<BlobDigest>> {
    let meta = fs::symlink_metadata(temp.path())?;
    if meta.ino() != inode || meta.nlink() != 1 {
        return Ok(None);
    }
    if !ours {
        fchown(temp.file(), Some(geteuid().as_raw()), Some(nix::unistd::getegid().as_raw()))?;
    }
    temp.file().set_permissions(Permissions::from_mode(BLOB_MODE))?;
    hash_reader(temp.file(), function).map(Some)
}

/// Opens a regular file; refuses everything else.
fn open(path: &Path) -> Result<File, CasError> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    regular(path, OpenOptions::new().read(true).custom_flags(flags).open(path))
}

fn regular(path: &Path, opened: io::Result<File>) -> Result<File, CasError> {
    let refused = || CasError::NotAFile { path: path.display().to_string() };
    let file = opened.map_err(|source| {
        let is_link = source.raw_os_error() == Some(Errno::ELOOP as i32);
        if is_link || source.kind() == io::ErrorKind::InvalidInput {
            refused()
        } else {
            unreadable(path, source)
        }
    })?;
    let regular = file.metadata().is_ok_and(|meta| meta.is_file());
    regular.then_some(file).ok_or_else(refused)
}

/// The error for a caller's file that cannot be read.
fn unreadable(path: &Path, source: io::Error) -> CasError {
    let errno = source.raw_os_error().map(Errno::from_raw);
    if matches!(errno, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM)) {
        // This process lacks something: the file itself may be fine.
        return CasError::disk("opening", path, source);
    }
    CasError::Source { path: path.display().to_string(), source }
}
