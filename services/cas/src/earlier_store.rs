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
use model::{BuildRecord, Digest, DigestFunction, ModelNotice, Sequence};
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
}

/// Moves the blobs, if that store is a folder of this machine. Ends when all are moved. `evictor` keeps them; an object
/// store needs none, because moved blobs are new there.
pub(crate) async fn move_blobs(context: &Context, cas: &Cas, evictor: Option<&Evictor>) {
    loop {
        match try_move(context, cas, evictor).await {
            Ok(()) => return,
            Err(error) => {
                warn!(error = error_chain(&error), "cannot move the blobs of an earlier version, retrying");
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn try_move(context: &Context, cas: &Cas, evictor: Option<&Evictor>) -> Result<(), MoveError> {
    let Some(url) = context.bus.buckets().earlier_store().await? else { return Ok(()) };
    let folder = PathBuf::from(url.strip_prefix("file://").unwrap_or(&url));
    let blobs = folder.join("sha256");
    // A folder without blobs may be one that is not mounted.
    if entries(blobs.clone()).await?.is_empty() {
        debug!(url, "the store of an earlier version has no blobs here");
        return Ok(());
    }
    let named = named(context).await?;
    let until = SystemTime::from(context.bus.now()) + cas.config().retention;
    let (mut moved, mut left) = (0, 0);
    for shard in entries(blobs).await? {
        let files = entries(shard).await?;
        let is_named = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|hash| named.contains(hash))
        };
        let (wanted, others): (Vec<_>, Vec<_>) = files.into_iter().partition(is_named);
        left += others.len();
        let refused = move_files(cas, evictor, &wanted, until).await?;
        moved += wanted.len() - refused;
        left += refused;
    }
    info!(moved, left, folder = %folder.display(), "moved the outputs and logs of an earlier version into the store");
    Ok(context.bus.buckets().forget_earlier_store().await?)
}

/// Moves files into the store, and returns how many of them it does not accept.
async fn move_files(
    cas: &Cas,
    evictor: Option<&Evictor>,
    files: &[PathBuf],
    until: SystemTime,
) -> Result<usize, MoveError> {
    let (mut rest, mut refused) = (files, 0);
    while !rest.is_empty() {
        let part = rest.get(..BATCH).unwrap_or(rest);
        // Copied: a file that is moved is lost if the object store does not accept it.
        let stored = cas.put_files(DigestFunction::Sha256, part.to_vec(), false).await;
        let (done, others) = rest.split_at(stored.digests.len());
        rest = others;
        if let Some(evictor) = evictor {
            evictor.keep(stored.digests.into_iter().map(|blob| (blob, until)).collect()).await?;
        }
        remove(done.to_vec()).await;
        let Some(error) = stored.error else { continue };
        let Some((path, others)) = rest.split_first().filter(|_| error.is_about_content()) else {
            return Err(error.into());
        };
        refused += 1;
        rest = others;
        warn!(path = %path.display(), error = error_chain(&error), "a blob was not moved");
    }
    Ok(refused)
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

/// The paths in a folder; none if it does not exist.
async fn entries(folder: PathBuf) -> Result<Vec<PathBuf>, MoveError> {
    let name = folder.display().to_string();
    let read = move || match fs::read_dir(&folder) {
        Ok(found) => found.map(|entry| Ok(entry?.path())).collect(),
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
