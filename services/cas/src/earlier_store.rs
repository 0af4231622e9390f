//! Moves the blobs of the store in which earlier versions kept outputs, logs, jobs and models into the farm's store, as
//! far as records name them.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use bus::{BusError, EventSubject, Follower, Start, stream};
use cas::{Cas, CasError, Evictor};
use model::{BlobDigest, BuildRecord, Digest, DigestFunction, ModelNotice, Sequence};
use service::Context;
use telemetry::error_chain;
use tokio::task::spawn_blocking;
use tracing::{debug, info, warn};

/// Maximum number of files that are moved before they are kept.
const BATCH: usize = 32;
/// Maximum number of events that are read at once.
const EVENTS: usize = 1000;
/// Pause before another attempt after a failure.
const RETRY: Duration = Duration::from_secs(60);

/// Why blobs were not moved.
#[derive(Debug, thiserror::Error)]
enum MoveError {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error("cannot read the folder {0}")]
    Folder(String, #[source] io::Error),
    #[error(transparent)]
    Store(#[from] CasError),
    #[error("the store does not have {0} of the blobs that were copied into it")]
    Lost(usize),
}

/// Moves the blobs, if that store is a folder of this machine. Ends when all are moved, except damaged ones and what is
/// no blob, which stay. `evictor` keeps them; an object store needs none, because moved blobs are new there.
pub(crate) async fn move_blobs(context: &Context, cas: &Cas, evictor: Option<&Evictor>) {
    let mut staying = HashSet::new();
    loop {
        match try_move(context, cas, evictor, &mut staying).await {
            Ok(()) => return,
            Err(error) => {
                warn!(error = error_chain(&error), "cannot move the blobs of an earlier version, retrying");
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn try_move(
    context: &Context,
    cas: &Cas,
    evictor: Option<&Evictor>,
    staying: &mut HashSet<PathBuf>,
) -> Result<(), MoveError> {
    let Some(url) = context.bus.buckets().earlier_store().await? else { return Ok(()) };
    let folder = PathBuf::from(url.strip_prefix("file://").unwrap_or(&url));
    let shards = entries(folder.join("sha256")).await?;
    // A folder without blobs may be one that is not mounted.
    if !shards.iter().any(|shard| shard.is_folder) {
        debug!(url, "the store of an earlier version has no blobs here");
        return Ok(());
    }
    let named = named(context).await?;
    let until = SystemTime::from(context.bus.now()) + cas.config().retention;
    let mut moving = Moving { cas, evictor, until, staying };
    let (mut moved, mut left) = (0, 0);
    for shard in shards {
        if !shard.is_folder {
            moving.stays(&shard.path, "it is not a folder");
            continue;
        }
        let mut wanted = Vec::new();
        for file in entries(shard.path).await? {
            match hash_of(&file.path).filter(|_| file.is_file) {
                None => moving.stays(&file.path, "it is not a blob"),
                Some(hash) if !named.contains(hash) => left += 1,
                Some(_) if moving.staying.contains(&file.path) => {}
                Some(_) => wanted.push(file.path),
            }
        }
        moved += moving.move_files(&wanted).await?;
    }
    context.bus.buckets().forget_earlier_store().await?;
    info!(moved, left, folder = %folder.display(), "moved the outputs and logs of an earlier version into the store");
    if !moving.staying.is_empty() {
        warn!(
            count = moving.staying.len(),
            folder = %folder.display(),
            "files of an earlier version that are damaged or are not blobs stay where they are"
        );
    }
    Ok(())
}

/// Moves files whose hashes records name.
struct Moving<'a> {
    cas: &'a Cas,
    evictor: Option<&'a Evictor>,
    until: SystemTime,
    /// What is not moved, and not tried again by this process.
    staying: &'a mut HashSet<PathBuf>,
}

impl Moving<'_> {
    /// Leaves a file where it is.
    fn stays(&mut self, path: &Path, why: &str) {
        if self.staying.insert(path.to_owned()) {
            warn!(path = %path.display(), why, "a file of an earlier version was not moved");
        }
    }

    /// Moves files into the store, and returns how many.
    async fn move_files(&mut self, files: &[PathBuf]) -> Result<usize, MoveError> {
        let (mut rest, mut moved) = (files, 0);
        while !rest.is_empty() {
            let part = rest.get(..BATCH).unwrap_or(rest);
            // Copied: a file that is moved is lost if the object store does not accept it.
            let stored = self.cas.put_files(DigestFunction::Sha256, part.to_vec(), false).await;
            let (done, others) = rest.split_at(stored.digests.len());
            rest = others;
            let mut intact = Vec::new();
            for (path, digest) in done.iter().zip(stored.digests) {
                if is_intact(path, &digest) {
                    intact.push((path.clone(), digest));
                } else {
                    self.stays(path, "it is damaged: its content has another digest than its name");
                }
            }
            let lost = self.keep(&intact).await?;
            intact.retain(|(_, digest)| !lost.contains(digest));
            moved += intact.len();
            remove(intact.into_iter().map(|(path, _)| path).collect()).await;
            if !lost.is_empty() {
                return Err(MoveError::Lost(lost.len()));
            }
            let Some(error) = stored.error else { continue };
            let Some((path, others)) = rest.split_first().filter(|_| error.is_about_content()) else {
                return Err(error.into());
            };
            rest = others;
            self.stays(path, &error_chain(&error));
        }
        Ok(moved)
    }

    /// Keeps stored blobs. Returns those that the store does not have: it does not copy a blob that it knew to be there
    /// a moment ago, even if its file is gone. The next attempt copies it.
    async fn keep(&self, stored: &[(PathBuf, BlobDigest)]) -> Result<HashSet<BlobDigest>, CasError> {
        let Some(evictor) = self.evictor else { return Ok(HashSet::new()) };
        let named = stored.iter().map(|(_, digest)| (*digest, self.until)).collect();
        let lost: HashSet<BlobDigest> = evictor.keep(named).await?.into_iter().collect();
        for digest in &lost {
            self.cas.forget(digest);
        }
        Ok(lost)
    }
}

/// The hash that a file is named after, if its name is a hash.
fn hash_of(path: &Path) -> Option<&str> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let name = path.file_name()?.to_str()?;
    (name.len() == 64 && name.bytes().all(is_digit)).then_some(name)
}

/// Whether a file whose content has this digest is named after it.
fn is_intact(path: &Path, found: &BlobDigest) -> bool {
    hash_of(path) == Some(found.hex().as_str())
}

/// The hashes of all blobs that records name.
async fn named(context: &Context) -> Result<HashSet<String>, MoveError> {
    let mut named = HashSet::new();
    let (_, notice) = context.bus.buckets().get::<ModelNotice>(&()).await?;
    named.extend(notice.map(|notice| notice.digest.hex().to_owned()));
    let (_, last) = context.bus.stream(stream::EVENTS).positions().await?;
    if last == Sequence(0) {
        return Ok(named);
    }
    let start = Start::LastOfEachSubject;
    let mut follower = Follower::new(&context.bus, stream::EVENTS, EventSubject::LIFECYCLES, start);
    loop {
        follower.open().await;
        if follower.caught_up() {
            break;
        }
        for stored in follower.next(EVENTS).await {
            match stored.record() {
                Ok(record) => named.extend(digests(&record).map(|digest| digest.hex().to_owned())),
                Err(error) => warn!(
                    subject = stored.subject,
                    error = error_chain(&error),
                    "cannot read a record: its blobs are not moved"
                ),
            }
        }
    }
    Ok(named)
}

fn digests(record: &BuildRecord) -> impl Iterator<Item = Digest> {
    let job = record.build.job.as_ref().map(|job| job.digest.clone());
    job.into_iter().chain(record.blobs().into_iter().map(|blob| Digest::from_sha256(blob.hash)))
}

/// An entry of a folder.
struct Listed {
    path: PathBuf,
    /// Whether it is a regular file, and no link.
    is_file: bool,
    /// Whether it is a folder, or a link to one.
    is_folder: bool,
}

impl Listed {
    fn of(entry: io::Result<fs::DirEntry>) -> io::Result<Self> {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let is_folder = kind.is_dir() || (kind.is_symlink() && path.is_dir());
        Ok(Self { path, is_file: kind.is_file(), is_folder })
    }
}

/// The entries of a folder; none if it does not exist.
async fn entries(folder: PathBuf) -> Result<Vec<Listed>, MoveError> {
    let name = folder.display().to_string();
    let read = move || match fs::read_dir(&folder) {
        Ok(found) => found.map(Listed::of).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    let found = spawn_blocking(read).await.map_err(|_| CasError::Stopping)?;
    found.map_err(|error| MoveError::Folder(name, error))
}

/// Removes the files whose copies are in the store.
async fn remove(paths: Vec<PathBuf>) {
    let remove = |path: &Path| match fs::remove_file(path) {
        // Another service may have moved it too.
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            warn!(path = %path.display(), %error, "cannot remove a blob that was moved");
        }
        Ok(()) | Err(_) => {}
    };
    // A failure is logged there.
    let _ = spawn_blocking(move || paths.iter().for_each(|path| remove(path))).await;
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cas::{CasConfig, EvictorConfig};

    use super::*;

    #[tokio::test]
    async fn a_file_stays_until_the_store_has_its_copy() {
        let folder = tempfile::tempdir().unwrap();
        let cas = Cas::open(CasConfig::new(folder.path().join("cas"))).unwrap();
        let evictor = Evictor::open(&cas, EvictorConfig { bytes_max: 1 << 30, free_bytes_min: 0 }).unwrap();
        let digest = cas.put_bytes(DigestFunction::Sha256, Bytes::from_static(b"content")).await.unwrap();
        let copy = cas.local_path(&digest, false).await.unwrap().unwrap();
        // The store still knows the blob as present.
        fs::remove_file(&copy).unwrap();
        let original = folder.path().join(digest.hex());
        fs::write(&original, "content").unwrap();
        let until = SystemTime::now() + Duration::from_secs(3600);
        let mut staying = HashSet::new();
        let mut moving = Moving { cas: &cas, evictor: Some(&evictor), until, staying: &mut staying };
        let files = [original.clone()];
        assert!(matches!(moving.move_files(&files).await, Err(MoveError::Lost(1))));
        assert!(original.exists());
        assert_eq!(moving.move_files(&files).await.unwrap(), 1);
        assert!(copy.exists() && !original.exists());
    }

    #[test]
    fn a_file_is_intact_if_it_is_named_after_its_content() {
        let digest = DigestFunction::Sha256.digest(b"content");
        let path = Path::new("/objects/sha256/ab").join(digest.hex());
        assert_eq!(hash_of(&path), Some(digest.hex().as_str()));
        assert!(is_intact(&path, &digest));
        assert!(!is_intact(&path, &DigestFunction::Sha256.digest(b"conten")), "truncated");
        let upper = digest.hex().to_uppercase();
        for name in ["README", "..", "", upper.as_str(), &digest.hex()[1..], &format!("{}-7", digest.hex())] {
            let path = Path::new("/objects/sha256/ab").join(name);
            assert!(hash_of(&path).is_none() && !is_intact(&path, &digest), "{name}");
        }
    }
}
