//! Stores files that are already on the disk.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use futures::{StreamExt as _, stream};
use hashing::{CopyError, copy_reader, hash_reader};
use invariant::Present as _;
use model::{BlobDigest, DigestFunction};
use nix::{errno::Errno, fcntl::OFlag, unistd::geteuid};
use remote::Source;

use crate::{
    Cas, CasError,
    backing::{BATCH_CALLS, farm::Farm},
    disk::Temp,
    empty_blob::is_empty,
    layout::{BLOB_MODE, Entry},
    store::Inner,
};

/// Number of files stored in one blocking task.
const FILES: usize = 32;

impl Cas {
    /// Stores the content of a regular file and returns its digest. Symlinks are refused.
    ///
    /// With `take` the caller gives up the file: if it has only one name, lies on the store's file system and its
    /// owner can be changed to the store's, it is moved instead of copied, and is then gone from `path`. Its content
    /// is hashed after the move. Only the caller can know that no process has the file open for writing. Without
    /// `take`, the bytes that are stored are the bytes that are hashed, whatever happens to the file in the meantime.
    pub async fn put_file(
        &self,
        function: DigestFunction,
        path: &Path,
        take: bool,
    ) -> Result<BlobDigest, CasError> {
        let stored = self.put_files(function, vec![path.to_owned()], take).await.pop();
        stored.present_or(Err(CasError::Stopping), "the outcome of storing one file")
    }

    /// Like [`Cas::put_file`], for many files. Returns the outcome of each, in their order. After the first error that
    /// is not about content, the files that were not begun yet are not tried: they get the same kind of error.
    pub async fn put_files(
        &self,
        function: DigestFunction,
        paths: Vec<PathBuf>,
        take: bool,
    ) -> Vec<Result<BlobDigest, CasError>> {
        let parts: Vec<Vec<PathBuf>> = paths.chunks(FILES).map(<[PathBuf]>::to_vec).collect();
        let first = Arc::new(FirstFailure::default());
        let put = |part| self.put_part(function, part, take, &first);
        let stored = stream::iter(parts).map(put).buffered(2);
        stored.collect::<Vec<_>>().await.into_iter().flatten().collect()
    }

    async fn put_part(
        &self,
        function: DigestFunction,
        paths: Vec<PathBuf>,
        take: bool,
        first: &Arc<FirstFailure>,
    ) -> Vec<Result<BlobDigest, CasError>> {
        let count = paths.len();
        let direct = self.inner.backing.is_none();
        let known = Arc::clone(first);
        let staged = self.run_blocking(move |inner| {
            let stage = |path: &PathBuf| {
                known.check()?;
                let staged = inner.stage_file(function, path, take);
                let staged =
                    if direct { staged.and_then(|staged| inner.keep_staged(staged)) } else { staged };
                known.note(&staged);
                staged
            };
            Ok(paths.iter().map(stage).collect::<Vec<_>>())
        });
        match (staged.await, self.farm()) {
            (Ok(staged), Some(farm)) => {
                let outcomes = self.put_staged_farm(farm, staged).await;
                for outcome in &outcomes {
                    first.note(outcome);
                }
                outcomes
            }
            (Ok(staged), None) => {
                stream::iter(staged)
                    .map(|staged| self.put_staged(staged, first))
                    .buffered(BATCH_CALLS)
                    .collect()
                    .await
            }
            (Err(_), _) => (0..count).map(|_| Err(CasError::Stopping)).collect(),
        }
    }

    /// Sends all of them together, then makes them visible.
    async fn put_staged_farm(
        &self,
        farm: &Farm,
        staged: Vec<Result<Staged, CasError>>,
    ) -> Vec<Result<BlobDigest, CasError>> {
        let count = staged.len();
        let source = |staged: &Staged| {
            let there = || self.inner.disk.layout.path(&Entry::blob(staged.digest));
            let path = staged.temp.as_ref().map_or_else(there, |temp| temp.path().to_owned());
            (staged.digest, Source::File(path))
        };
        let sent = farm.put_all(staged.iter().flatten().map(source).collect()).await;
        let sent = sent.err();
        let staged = match sent {
            Some(failure) => return staged.into_iter().map(|s| s.and(Err(farm.failed(&failure)))).collect(),
            None => staged,
        };
        let kept = self.run_blocking(move |inner| {
            let keep = |staged: Result<Staged, CasError>| Ok(inner.keep_staged(staged?)?.digest);
            Ok(staged.into_iter().map(keep).collect())
        });
        kept.await.unwrap_or_else(|_| (0..count).map(|_| Err(CasError::Stopping)).collect())
    }

    /// Uploads a file if it is still staged, then makes it visible.
    async fn put_staged(
        &self,
        staged: Result<Staged, CasError>,
        first: &FirstFailure,
    ) -> Result<BlobDigest, CasError> {
        let staged = staged?;
        let digest = staged.digest;
        if let (Some(temp), Some(objects)) = (&staged.temp, self.objects()) {
            first.check()?;
            let sent = objects.put_file(&Entry::blob(digest), temp.path(), digest.size).await;
            first.note(&sent);
            sent?;
            self.run_blocking(move |inner| inner.keep_staged(staged)).await?;
        }
        Ok(digest)
    }
}

/// The first failure of the store among many files.
#[derive(Debug, Default)]
struct FirstFailure(OnceLock<CasError>);

impl FirstFailure {
    /// Fails if the store failed before.
    fn check(&self) -> Result<(), CasError> {
        self.0.get().map_or(Ok(()), |first| Err(same_kind(first)))
    }

    fn note<T>(&self, outcome: &Result<T, CasError>) {
        if let Err(error) = outcome
            && !error.is_about_content()
        {
            self.0.get_or_init(|| same_kind(error));
        }
    }
}

/// The error of a file that was not tried after the failure `first` of another file.
fn same_kind(first: &CasError) -> CasError {
    match first {
        CasError::Full => CasError::Full,
        CasError::Disk { what, path, source } => {
            let source = io::Error::new(source.kind(), source.to_string());
            CasError::Disk { what, path: path.clone(), source }
        }
        CasError::Backing { what, key, source } => {
            let source = object_store::Error::Generic { store: "store", source: source.to_string().into() };
            CasError::Backing { what, key: key.clone(), source }
        }
        CasError::Unreachable { url, source } => {
            CasError::Unreachable { url: url.clone(), source: Arc::clone(source) }
        }
        CasError::Remote { url, source } => CasError::Remote { url: url.clone(), source: Arc::clone(source) },
        CasError::Unsupported { url, why } => CasError::Unsupported { url: url.clone(), why: why.clone() },
        CasError::EvictorRuns { path } => CasError::EvictorRuns { path: path.clone() },
        CasError::Stopping
        | CasError::Mismatch { .. }
        | CasError::TooLong { .. }
        | CasError::TooLarge { .. }
        | CasError::TooLargeAtOnce { .. }
        | CasError::Missing { .. }
        | CasError::NotFound { .. }
        | CasError::Malformed { .. }
        | CasError::MixedFunctions { .. }
        | CasError::NotAFile { .. }
        | CasError::Source { .. } => CasError::Stopping,
    }
}

/// A file that was hashed. If the store does not have the blob yet, the file waits in `tmp/`.
#[derive(Debug)]
struct Staged {
    digest: BlobDigest,
    temp: Option<Temp>,
}

impl Inner {
    fn stage_file(&self, function: DigestFunction, path: &Path, take: bool) -> Result<Staged, CasError> {
        let file = open(path)?;
        let meta = file.metadata().map_err(|source| unreadable(path, source))?;
        self.check_size(&BlobDigest { function, hash: [0; 32], size: meta.len() })?;
        if meta.len() == 0 {
            return Ok(Staged { digest: function.empty(), temp: None });
        }
        let ours = meta.uid() == geteuid().as_raw();
        if take && meta.nlink() == 1 && (ours || geteuid().is_root()) {
            match self.disk.move_to_temp(path, file) {
                Ok(temp) => return self.adopt(function, path, temp, (meta.ino(), ours)),
                // Most likely the file is on another file system.
                Err(_) => return self.copy(function, path, &open(path)?),
            }
        }
        self.copy(function, path, &file)
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
                self.copy(function, path, &open(path)?)
            }
            Err(source) => {
                temp.give_back(path);
                Err(CasError::disk("taking ownership of", path, source))
            }
        }
    }

    /// Copies a file into `tmp/` and hashes the bytes that it copies.
    fn copy(&self, function: DigestFunction, path: &Path, file: &File) -> Result<Staged, CasError> {
        // A full store accepts no copies, but may have the blob already.
        let mut temp = if self.is_refusing(0) { None } else { Some(self.disk.temp(BLOB_MODE)?) };
        let max = self.config.blob_bytes_max;
        let limited = file.take(max.saturating_add(1));
        let copied = match &mut temp {
            Some(temp) => copy_reader(limited, &mut temp.file, function),
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

    fn is_refusing(&self, size: u64) -> bool {
        self.refuses(size) && self.backing.is_none()
    }

    /// Whether a blob must be stored. Fails if that is necessary and the store is full.
    fn is_needed(&self, digest: &BlobDigest) -> Result<bool, CasError> {
        let now = self.known.now();
        if is_empty(digest) || self.known.fresh(digest, now).is_some() || self.touch_if_needed(digest, now)? {
            return Ok(false);
        }
        if self.is_refusing(digest.size) { Err(CasError::Full) } else { Ok(true) }
    }

    fn keep_staged(&self, mut staged: Staged) -> Result<Staged, CasError> {
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
        fchown(&temp.file, Some(geteuid().as_raw()), Some(nix::unistd::getegid().as_raw()))?;
    }
    temp.file.set_permissions(Permissions::from_mode(BLOB_MODE))?;
    hash_reader(&temp.file, function).map(Some)
}

/// Opens a regular file; refuses everything else.
fn open(path: &Path) -> Result<File, CasError> {
    let refused = || CasError::NotAFile { path: path.display().to_string() };
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|source| {
        let symlink = source.raw_os_error() == Some(Errno::ELOOP as i32);
        if symlink { refused() } else { unreadable(path, source) }
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
