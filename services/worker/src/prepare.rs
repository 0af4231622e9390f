//! Fills a workspace before the command starts. Programs that fetch sources run under the shim, like the command
//! itself: they die with the lease, and their output is part of the build's console output.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use cas::Cas;
use disk::Reserve;
use download::{DownloadError, Downloader};
use futures::FutureExt as _;
use jobs::passing_code;
use model::{BlobDigest, Context, Digest, DigestFunction, Reason, ReasonCode};
use nix::errno::Errno;

use crate::{
    folder::RunFolder,
    git::{Repository, Wanted},
    prepare_step::{Fault, Fetch, FileWork, PrepareStep, Work, shell},
    sync::{Choice, FolderSource, Source, StoreAway, Sync, TransferMode, TreeError, TreeFetch},
    warm::WorkspaceOrigin,
};

/// Settings common to all preparations of a worker.
pub(crate) struct PrepareOptions<'a> {
    /// The operator's file with settings of git.
    pub(crate) git_settings: Option<&'a Path>,
    /// The worker's data folder, which is excluded from every copy.
    pub(crate) data: &'a Path,
    /// Maximum number of bytes that an archive may unpack to, and of the files of a folder in the store.
    pub(crate) unpacked_bytes_max: u64,
    /// Share of the disk of which half must stay free.
    pub(crate) reserve: Reserve,
    pub(crate) cas: &'a Cas,
}

/// Exit code of a step's program when the wanted content is unavailable and no file of the workspace was touched.
pub(crate) const NO_CONTENT: i32 = 69;

/// Bytes of a tar record, the unit of tar's checkpoints.
const TAR_RECORD: u64 = 10_240;
/// Stops unpacking at the size limit: GNU tar counts the bytes it reads after decompression.
const UNPACK: &str = r#"ulimit -f "$(($3 * 20))"
if tar --version 2>/dev/null | grep -q GNU; then
  export WORD="$4"
  set -- "$1" "$2" "--checkpoint=$3" '--checkpoint-action=exec=echo "$WORD" >&2; kill "$PPID"'
else
  set -- "$1" "$2"
fi
file=$1 folder=$2
shift 2
tar "$@" -xf "$file" -C "$folder" || exit 69
"#;
const ASIDE: &str = r#"rm -rf "$2" && mkdir "$2" || exit
"#;

/// Does the work that needs no process, and returns the remaining steps.
pub(crate) async fn steps(
    context: &Context,
    folder: &RunFolder,
    origin: WorkspaceOrigin,
    options: &PrepareOptions<'_>,
) -> Result<Vec<PrepareStep>, Fault> {
    match context {
        Context::Empty => Ok(Vec::new()),
        Context::Directory { path, ignore_files } => {
            let choice = Choice { ignore_files: *ignore_files, data: Some(options.data.to_owned()) };
            directory(path, choice, sync_to(folder, origin, options.reserve)?)
        }
        Context::Tree { digest, source } => tree(digest, source.as_deref(), folder, origin, options),
        Context::Git { url, revision, patch } => {
            let own = own(folder)?;
            let patch = match patch {
                None => None,
                Some(patch) => {
                    let file = own.join("patch");
                    let written = tokio::fs::write(&file, patch).await;
                    written.map_err(|error| Fault::Workspace(broken("writing the patch", &error)))?;
                    Some(file)
                }
            };
            let repository = Repository::ready(own, &folder.build, origin, options.git_settings)
                .map_err(|error| Fault::Workspace(broken("preparing the git repository", &error)))?;
            Ok(repository.steps(&Wanted { url, revision, patch }))
        }
        Context::Archive { location, digest } => {
            let file = archive(location, digest.as_ref(), folder).await?;
            let what = format!("unpacking {location}");
            let most = options.unpacked_bytes_max;
            let records = most.div_ceil(TAR_RECORD).max(1).to_string();
            let too_large = format!("the archive holds more than {most} bytes (unpacked_bytes_max)");
            if origin == WorkspaceOrigin::Fresh {
                return Ok(vec![shell(what, UNPACK, &[&file, ".", &records, &too_large])]);
            }
            let unpacked = own(folder)?.join("unpacked");
            let sync = sync_to(folder, origin, options.reserve)?;
            let script = format!("{ASIDE}{UNPACK}");
            let aside =
                shell(what.clone(), &script, &[&file, &unpacked.display().to_string(), &records, &too_large]);
            let source =
                FolderSource { folder: unpacked, choice: Choice::default(), mode: TransferMode::Move };
            let work: FileWork = Box::new(move |cancelled| {
                sync.run(&source, cancelled)?;
                disk::remove_tree(&source.folder)
            });
            Ok(vec![aside, PrepareStep { what, work: Work::Files { work, progress: None } }])
        }
    }
}

fn directory(path: &str, choice: Choice, sync: Sync) -> Result<Vec<PrepareStep>, Fault> {
    if !Path::new(path).is_dir() {
        return Err(unavailable(format!("folder {path} not found on this worker")));
    }
    let source = FolderSource { folder: path.into(), choice, mode: TransferMode::Copy };
    Ok(vec![copying(path, sync, source)])
}

/// Fetches a folder in the store first, then changes the workspace.
fn tree(
    digest: &BlobDigest,
    source: Option<&str>,
    folder: &RunFolder,
    origin: WorkspaceOrigin,
    options: &PrepareOptions<'_>,
) -> Result<Vec<PrepareStep>, Fault> {
    let name = source.map_or_else(|| format!("folder {digest}"), ToOwned::to_owned);
    let what = format!("fetching {name}");
    let sync = sync_to(folder, origin, options.reserve)?;
    let progress = Arc::default();
    let fetch = TreeFetch {
        cas: options.cas.clone(),
        root: *digest,
        target: sync.target.clone(),
        before: sync.manifest.clone().filter(|_| !sync.fresh),
        bytes_max: options.unpacked_bytes_max,
        progress: Arc::clone(&progress),
    };
    let fetching = what.clone();
    let fetch: Fetch = Box::new(move || {
        let (fetch, sync, name, what) = (fetch.clone(), sync.clone(), name.clone(), fetching.clone());
        let fetched = async move {
            let source = fetch.run().await.map_err(|error| not_fetched(&what, &error))?;
            Ok::<_, Fault>(copying(&name, sync, source))
        };
        fetched.boxed()
    });
    Ok(vec![PrepareStep { what, work: Work::Fetch { fetch, progress } }])
}

fn not_fetched(what: &str, error: &TreeError) -> Fault {
    let message = format!("{what} failed: {}", telemetry::error_chain(error));
    match error {
        TreeError::Missing { .. } | TreeError::Invalid(_) => unavailable(message),
        TreeError::Store(error) => match passing_code(error) {
            Some(code @ ReasonCode::StoreUnreachable) => Fault::StoreUnreachable(Reason { code, message }),
            Some(code) => Fault::NoContent(Reason { code, message }),
            None => unavailable(message),
        },
        TreeError::Workspace(error) => Fault::Workspace(broken(what, error)),
    }
}

/// The fault for a failure to change the files of the workspace.
pub(crate) fn not_copied(what: &str, error: &std::io::Error) -> Fault {
    if error.get_ref().is_some_and(<dyn std::error::Error + Send + std::marker::Sync>::is::<StoreAway>) {
        let message = format!("{what} failed: {error}");
        return Fault::StoreLost(Reason { code: ReasonCode::StoreUnreachable, message });
    }
    Fault::Workspace(broken(what, error))
}

fn copying(name: &str, sync: Sync, source: impl Source + Send + 'static) -> PrepareStep {
    let progress = Some(Arc::clone(&sync.progress));
    let work: FileWork = Box::new(move |cancelled| sync.run(&source, cancelled).map(drop));
    PrepareStep { what: format!("preparing the workspace from {name}"), work: Work::Files { work, progress } }
}

fn sync_to(folder: &RunFolder, origin: WorkspaceOrigin, reserve: Reserve) -> Result<Sync, Fault> {
    Ok(Sync {
        target: folder.build.clone(),
        manifest: manifest(folder, origin)?,
        fresh: origin != WorkspaceOrigin::Reused,
        reserve,
        progress: Arc::default(),
    })
}

/// The file with the list of entries; `None` for a fresh workspace, which no later build uses.
fn manifest(folder: &RunFolder, origin: WorkspaceOrigin) -> Result<Option<PathBuf>, Fault> {
    if origin == WorkspaceOrigin::Fresh { Ok(None) } else { Ok(Some(own(folder)?.join("manifest"))) }
}

fn own(folder: &RunFolder) -> Result<&Path, Fault> {
    folder.own().map_err(|error| Fault::Workspace(broken("creating the workspace", &error)))
}

/// The archive as a verified local file; returns its path.
async fn archive(location: &str, wanted: Option<&Digest>, folder: &RunFolder) -> Result<String, Fault> {
    let (file, found) = if location.starts_with('/') {
        // Checked in place: it is unpacked from there.
        (location.to_owned(), if wanted.is_some() { Some(hash(location).await?) } else { None })
    } else {
        let file = own(folder)?.join("archive").display().to_string();
        (file.clone(), Some(download(location, &file).await?))
    };
    if !Path::new(&file).is_file() {
        return Err(unavailable(format!("archive {location} not found on this worker")));
    }
    match (wanted, found) {
        (Some(wanted), Some(found)) if *wanted != found => {
            Err(unavailable(format!("archive {location} has digest {found}, expected {wanted}")))
        }
        (_, _) => Ok(file),
    }
}

async fn hash(path: &str) -> Result<Digest, Fault> {
    let missing = |error: std::io::Error| unavailable(format!("cannot read archive {path}: {error}"));
    let found = hashing::hash_file_async(Path::new(path), DigestFunction::Sha256).await.map_err(missing)?;
    Ok(Digest::from_sha256(found.hash))
}

async fn download(url: &str, to: &str) -> Result<Digest, Fault> {
    let failed = |error: DownloadError| match error {
        DownloadError::Write(error) => Fault::Workspace(broken("writing the archive", &error)),
        DownloadError::Client(_)
        | DownloadError::Invalid(_)
        | DownloadError::Redirect(_)
        | DownloadError::TimedOut(_)
        | DownloadError::Unreachable(_)
        | DownloadError::Refused(_)
        | DownloadError::TooLarge { .. } => {
            unavailable(format!("cannot fetch archive {url}: {}", telemetry::error_chain(&error)))
        }
    };
    let downloader = Downloader::new().map_err(failed)?;
    // The limit applies to the unpacked files.
    let archive =
        downloader.download(url, &[], Path::new(to), u64::MAX, DigestFunction::Sha256.hasher()).await;
    Ok(Digest::from_sha256(archive.map_err(failed)?.hash))
}

fn unavailable(message: String) -> Fault {
    Fault::NoContent(Reason { code: ReasonCode::ContextUnavailable, message })
}

/// The reason for a failure to write files of the workspace.
pub(crate) fn broken(what: &str, error: &std::io::Error) -> Reason {
    let of_machine = error.raw_os_error().map(Errno::from_raw).is_some_and(is_of_machine);
    let code = if error.kind() == ErrorKind::StorageFull {
        ReasonCode::DiskFull
    } else if of_machine {
        ReasonCode::WorkerFault
    } else {
        ReasonCode::ContextUnavailable
    };
    Reason { code, message: format!("{what} failed: {error}") }
}

/// Errors that no content of a build causes: of disks, memory, and too many open files.
fn is_of_machine(error: Errno) -> bool {
    matches!(
        error,
        Errno::EIO
            | Errno::EMFILE
            | Errno::ENFILE
            | Errno::ENODEV
            | Errno::ENOMEM
            | Errno::EROFS
            | Errno::ESTALE
            | Errno::EDQUOT
    )
}

/// The reason for a workspace that cannot be made, which no build causes.
pub(crate) fn unusable(error: &std::io::Error) -> Reason {
    let full = error.kind() == ErrorKind::StorageFull;
    let code = if full { ReasonCode::DiskFull } else { ReasonCode::WorkerFault };
    Reason { code, message: format!("creating the workspace failed: {error}") }
}
