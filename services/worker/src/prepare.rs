//! Fills a workspace before the command starts. Programs that fetch sources run under the shim, like the command
//! itself: they die with the lease, and their output is part of the build's console output.

use std::{
    fs,
    io::{self, ErrorKind, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use cas::Cas;
use disk::{Confined, Reserve};
use download::{DownloadError, Downloader, Reach};
use futures::FutureExt as _;
use jobs::passing_code;
use model::{BlobDigest, Context, Digest, DigestFunction, Reason, ReasonCode};
use nix::errno::Errno;

use crate::{
    folder::RunFolder,
    git::{self, Repository, Wanted},
    prepare_step::{Fault, Fetch, FileWork, PrepareStep, Work, shell},
    sources::{Refusal, Sources},
    sync::{Choice, FolderSource, Source, StoreAway, Sync, TransferMode, TreeError, TreeFetch},
    warm::WorkspaceOrigin,
};

/// Settings common to all preparations of a worker.
pub(crate) struct PrepareOptions<'a> {
    /// Where sources may come from.
    pub(crate) sources: &'a Sources,
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
/// Exit code of a step's program when the wanted content could not be fetched, perhaps only by this machine, and no file
/// of the workspace was touched.
pub(crate) const NOT_HERE: i32 = 70;

/// Bytes of an archive that are copied at once.
const PIECE: u64 = 64 << 20;
/// Bytes of a tar record, the unit of tar's checkpoints.
const TAR_RECORD: u64 = 10_240;
/// Stops unpacking at the size limit: GNU tar counts the bytes it reads after decompression. As root, tar also makes
/// devices, through which a build could reach the machine's disks, and keeps owners and set-user-ID bits unless it is told not to.
const UNPACK: &str = r#"ulimit -f "$(($3 * 20))"
if tar --version 2>/dev/null | grep -q GNU; then
  export WORD="$4"
  set -- "$1" "$2" "--checkpoint=$3" '--checkpoint-action=exec=echo "$WORD" >&2; kill "$PPID"'
else
  set -- "$1" "$2"
fi
file=$1 folder=$2
shift 2
tar "$@" --no-same-owner --no-same-permissions -xf "$file" -C "$folder" || {
  tar --version >/dev/null 2>&1 || exit 70
  exit 69
}
device=$(find "$folder" '(' -type b -o -type c ')' -print -exec rm -f '{}' ';') || exit 69
if [ -n "$device" ]; then
  echo "the archive holds a device: $device" >&2
  exit 69
fi
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
            directory(path, choice, sync_to(folder, origin, options.reserve)?, options.sources)
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
            let remote = git::reach(url, revision, options.sources).await;
            let remote = remote.map_err(|Refusal(message)| unavailable(message))?;
            let repository = Repository::ready(own, &folder.build, origin, &remote, options.git_settings)
                .map_err(|error| Fault::Workspace(broken("preparing the git repository", &error)))?;
            Ok(repository.steps(Wanted { url, revision, patch, remote }))
        }
        Context::Archive { location, digest } => {
            let file = archive(location, digest.as_ref(), folder, options.sources).await?;
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

fn directory(path: &str, choice: Choice, sync: Sync, sources: &Sources) -> Result<Vec<PrepareStep>, Fault> {
    let folder = sources.local(Path::new(path)).map_err(|Refusal(message)| unavailable(message))?;
    let opened = Confined::open(&folder)
        .map_err(|error| not_here(format!("cannot open the folder {path} on this worker: {error}")))?;
    let source = FolderSource { folder, choice, mode: TransferMode::Copy(opened) };
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
async fn archive(
    location: &str,
    wanted: Option<&Digest>,
    folder: &RunFolder,
    sources: &Sources,
) -> Result<String, Fault> {
    let file = own(folder)?.join("archive").display().to_string();
    let found = if location.starts_with('/') {
        copy_archive(location, &file, sources).await?;
        if wanted.is_some() { Some(hash(&file).await?) } else { None }
    } else {
        Some(download(location, &file, &sources.reach).await?)
    };
    match (wanted, found) {
        (Some(wanted), Some(found)) if *wanted != found => {
            Err(unavailable(format!("archive {location} has digest {found}, expected {wanted}")))
        }
        (_, _) => Ok(file),
    }
}

/// Copies an archive of this machine: others may replace the file after its path was checked.
async fn copy_archive(location: &str, to: &str, sources: &Sources) -> Result<(), Fault> {
    let path = sources.local(Path::new(location)).map_err(|Refusal(message)| unavailable(message))?;
    let from = disk::open_file(&path)
        .map_err(|error| not_here(format!("cannot read archive {location}: {error}")))?;
    let written = |error: io::Error| Fault::Workspace(broken("copying the archive", &error));
    let mut files = (from, fs::File::create(to).map_err(written)?);
    loop {
        // In pieces, so that a stopped build does not leave a long copy behind.
        let piece = tokio::task::spawn_blocking(move || {
            let (from, mut to) = files;
            let bytes = io::copy(&mut (&from).take(PIECE), &mut to)?;
            Ok((bytes, (from, to)))
        });
        let piece = piece.await.map_err(io::Error::other).and_then(|piece| piece);
        match piece.map_err(written)? {
            (0, _) => return Ok(()),
            (_, rest) => files = rest,
        }
    }
}

async fn hash(path: &str) -> Result<Digest, Fault> {
    let missing = |error: std::io::Error| unavailable(format!("cannot read archive {path}: {error}"));
    let found = hashing::hash_file_async(Path::new(path), DigestFunction::Sha256).await.map_err(missing)?;
    Ok(Digest::from_sha256(found.hash))
}

async fn download(url: &str, to: &str, reach: &Reach) -> Result<Digest, Fault> {
    let not_fetched =
        |error: &DownloadError| format!("cannot fetch archive {url}: {}", telemetry::error_chain(error));
    let failed = |error: DownloadError| match error {
        DownloadError::Write(error) => Fault::Workspace(broken("writing the archive", &error)),
        DownloadError::Client(_)
        | DownloadError::Unresolved(_)
        | DownloadError::TimedOut(_)
        | DownloadError::Unreachable(_) => not_here(not_fetched(&error)),
        DownloadError::Invalid(_)
        | DownloadError::Redirect(_)
        | DownloadError::Closed(_)
        | DownloadError::Refused(_)
        | DownloadError::TooLarge { .. } => unavailable(not_fetched(&error)),
    };
    let downloader = Downloader::new(reach.clone()).map_err(failed)?;
    // The limit applies to the unpacked files.
    let archive =
        downloader.download(url, &[], Path::new(to), u64::MAX, DigestFunction::Sha256.hasher()).await;
    Ok(Digest::from_sha256(archive.map_err(failed)?.hash))
}

/// The fault for content that could not be fetched, perhaps only by this machine.
fn not_here(message: String) -> Fault {
    Fault::NotHere(Reason { code: ReasonCode::ContextUnavailable, message })
}

/// The fault for content that no worker with these settings can get.
pub(crate) fn unavailable(message: String) -> Fault {
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

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, process::Command};

    use super::*;

    #[test]
    fn s11_an_archive_brings_no_rights_of_others() {
        let place = tempfile::tempdir().unwrap();
        let make = "echo x > s; chmod 6755 s; ln s second; mkdir d; chmod 7777 d; tar cf a.tar s second d; mkdir out";
        assert!(Command::new("sh").args(["-c", make]).current_dir(&place).status().unwrap().success());
        let unpack = ["-c", UNPACK, "sh", "a.tar", "out", "1000", "too large"];
        assert!(Command::new("sh").args(unpack).current_dir(&place).status().unwrap().success());
        for name in ["s", "second", "d"] {
            let mode = fs::metadata(place.path().join("out").join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o6000, 0, "{name}: {mode:o}");
        }
    }
}
