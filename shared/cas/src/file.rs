//! Stores files that are already on the disk.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::{StreamExt as _, stream};
use invariant::Present as _;
use model::{BlobDigest, DigestFunction};
use remote::Source;

use crate::{
    Cas, CasError,
    backing::{BATCH_CALLS, Backing, farm::Farm, objects::Objects},
    disk::Temp,
    layout::Entry,
    local::Staged,
    put_progress::PutProgress,
};

/// Number of files stored in one blocking task.
const FILES: usize = 32;

/// How files are given to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// They stay where they are.
    Lent,
    /// The caller gives them up.
    Away,
    /// They stay, in folders that others change. Their paths are resolved, and refused if a part is a link by now.
    Watched,
}

/// The outcome of [`Cas::put_files`].
#[derive(Debug)]
pub struct StoredFiles {
    /// Digests of the files before the first that was not stored, in their order.
    pub digests: Vec<BlobDigest>,
    /// Why the next file was not stored; `None` if all were.
    pub error: Option<CasError>,
}

impl StoredFiles {
    /// The digests of all files, or the error if one was not stored.
    pub fn all(self) -> Result<Vec<BlobDigest>, CasError> {
        self.error.map_or(Ok(self.digests), Err)
    }

    fn new(outcomes: impl Iterator<Item = Result<BlobDigest, CasError>>) -> Self {
        let mut digests = Vec::new();
        for outcome in outcomes {
            match outcome {
                Ok(digest) => digests.push(digest),
                Err(error) => return Self { digests, error: Some(error) },
            }
        }
        Self { digests, error: None }
    }
}

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
        let stored = self.put_files(function, vec![path.to_owned()], take).await.all()?;
        stored.first().copied().map(Ok).present_or(Err(CasError::Stopping), "the digest of a stored file")
    }

    /// Like [`Cas::put_file`], for many files, up to the first that cannot be stored. Files after that one may be
    /// stored as well by then.
    pub async fn put_files(&self, function: DigestFunction, paths: Vec<PathBuf>, take: bool) -> StoredFiles {
        let given = if take { Given::Away } else { Given::Lent };
        self.put_files_with_progress(function, paths, given, &Arc::default()).await
    }

    /// Like [`Cas::put_files`], and reports its progress to `progress`.
    pub async fn put_files_with_progress(
        &self,
        function: DigestFunction,
        paths: Vec<PathBuf>,
        given: Given,
        progress: &Arc<PutProgress>,
    ) -> StoredFiles {
        let parts: Vec<Vec<PathBuf>> = paths.chunks(FILES).map(<[PathBuf]>::to_vec).collect();
        let progress = Arc::clone(progress);
        let call = Arc::new(PutCall { function, given, failed: FirstFailed::default(), progress });
        let put = |(part, paths)| self.put_and_prove(part * FILES, paths, &call);
        let stored = stream::iter(parts.into_iter().enumerate()).map(put).buffered(2);
        StoredFiles::new(stored.collect::<Vec<_>>().await.into_iter().flatten())
    }

    /// Stores files as [`Cas::put_part`] does; the zone of this handle has then proved to have them.
    async fn put_and_prove(
        &self,
        first: usize,
        paths: Vec<PathBuf>,
        call: &Arc<PutCall>,
    ) -> Vec<Result<BlobDigest, CasError>> {
        if self.view().is_none() {
            return self.put_part(first, paths, call).await;
        }
        if let Err(error) = self.admit_files(call.function, &paths).await {
            call.failed.note(first);
            return vec![Err(error)];
        }
        let outcomes = self.put_part(first, paths, call).await;
        let digests: Vec<BlobDigest> = outcomes.iter().filter_map(|it| it.as_ref().ok()).copied().collect();
        match self.prove(&digests).await {
            Ok(()) => outcomes,
            Err(error) => vec![Err(error)],
        }
    }

    /// Stores files, of which the first has the number `first`. Returns the outcome of each, in their order, at least
    /// up to the first failure.
    async fn put_part(
        &self,
        first: usize,
        paths: Vec<PathBuf>,
        call: &Arc<PutCall>,
    ) -> Vec<Result<BlobDigest, CasError>> {
        let direct = self.backing().is_none();
        let known = Arc::clone(call);
        let staged = self.run_blocking(move |local| {
            let mut staged = Vec::with_capacity(paths.len());
            for (number, path) in (first..).zip(&paths) {
                if known.failed.is_before(number) {
                    break;
                }
                let file = local.stage_file(known.function, path, known.given, &known.progress);
                let file = if direct { file.and_then(|file| local.keep_staged(file)) } else { file };
                match local.noted(file) {
                    Ok(file) => staged.push(file),
                    Err(error) => {
                        known.failed.note(number);
                        return Ok((staged, Some(error)));
                    }
                }
            }
            Ok((staged, None))
        });
        let (staged, error) = staged.await.unwrap_or_else(|error| (Vec::new(), Some(error)));
        let mut outcomes = match self.backing() {
            None => staged.into_iter().map(|staged| Ok(staged.digest())).collect(),
            Some(Backing::Objects(objects)) => {
                let put = |(number, staged)| self.put_staged(objects, number, staged, call);
                let stored = stream::iter((first..).zip(staged)).map(put).buffered(BATCH_CALLS);
                stored.filter_map(std::future::ready).collect().await
            }
            Some(Backing::Remote(farm)) => self.put_staged_farm(farm, staged, &call.progress).await,
        };
        call.progress.add_files(outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64);
        outcomes.extend(error.map(Err));
        if let Some(at) = outcomes.iter().position(Result::is_err) {
            call.failed.note(first + at);
        }
        outcomes
    }

    /// Sends all of them together, then makes them visible.
    async fn put_staged_farm(
        &self,
        farm: &Farm,
        staged: Vec<Staged>,
        progress: &PutProgress,
    ) -> Vec<Result<BlobDigest, CasError>> {
        let source = |staged: &Staged| {
            let there = || self.local().path(&Entry::blob(staged.digest()));
            let path = staged.temp().map_or_else(there, |temp| temp.path().to_owned());
            (staged.digest(), Source::File(path))
        };
        if let Err(failure) = farm.put_all(staged.iter().map(source).collect(), progress).await {
            return vec![Err(farm.failed(&failure))];
        }
        let kept = self.run_blocking(move |local| {
            let keep = |staged| local.noted(local.keep_staged(staged)).map(|staged| staged.digest());
            Ok(staged.into_iter().map(keep).collect())
        });
        kept.await.unwrap_or_else(|error| vec![Err(error)])
    }

    /// Uploads a file if it is still staged, then makes it visible. `None` if a file before it failed.
    async fn put_staged(
        &self,
        objects: &Objects,
        number: usize,
        staged: Staged,
        call: &PutCall,
    ) -> Option<Result<BlobDigest, CasError>> {
        let digest = staged.digest();
        let Some(path) = staged.temp().map(Temp::path) else { return Some(Ok(digest)) };
        if call.failed.is_before(number) {
            return None;
        }
        let sent = match objects.put_file(&Entry::blob(digest), path, &call.progress).await {
            Ok(()) => self.run_blocking(move |local| local.keep_staged(staged)).await.map(|_| digest),
            Err(error) => Err(error),
        };
        if sent.is_err() {
            call.failed.note(number);
        }
        Some(sent)
    }
}

/// One call that stores many files.
#[derive(Debug)]
struct PutCall {
    function: DigestFunction,
    given: Given,
    failed: FirstFailed,
    progress: Arc<PutProgress>,
}

/// The number of the first of many files that could not be stored.
#[derive(Debug)]
struct FirstFailed(AtomicUsize);

impl Default for FirstFailed {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl FirstFailed {
    /// Whether a file before this one failed.
    fn is_before(&self, number: usize) -> bool {
        self.0.load(Ordering::Relaxed) < number
    }

    fn note(&self, number: usize) {
        self.0.fetch_min(number, Ordering::Relaxed);
    }
}
