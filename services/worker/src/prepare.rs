//! Fills a workspace before the command starts. Programs that fetch sources run under the shim, like the command
//! itself: they die with the lease, and their output is part of the build's console output.

use std::{path::Path, sync::Arc, time::Duration};

use futures::TryStreamExt as _;
use invariant::Present as _;
use model::{Context, Digest, Reason, ReasonCode};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    folder::RunFolder,
    git::{Repository, Wanted},
    prepare_step::{FileWork, PrepareStep, Work, shell},
    sync::{Choice, Sync, TransferMode},
    warm::WorkspaceOrigin,
};

/// Why a workspace was not filled.
pub(crate) enum Fault {
    /// The wanted content is unavailable. The workspace is unchanged.
    NoContent(Reason),
    /// The workspace or the disk is at fault.
    Workspace(Reason),
}

/// Settings common to all preparations of a worker.
pub(crate) struct PrepareOptions<'a> {
    /// The operator's file with settings of git.
    pub(crate) git_settings: Option<&'a Path>,
    /// The worker's data folder, which is excluded from every copy.
    pub(crate) data: &'a Path,
    /// Maximum number of bytes that an archive may unpack to.
    pub(crate) unpacked_bytes_max: u64,
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
            directory(path, choice, folder, origin)
        }
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
            let sync = sync_from(&unpacked, Choice::default(), TransferMode::Move, folder, origin)?;
            let script = format!("{ASIDE}{UNPACK}");
            let aside =
                shell(what.clone(), &script, &[&file, &unpacked.display().to_string(), &records, &too_large]);
            let work: FileWork = Box::new(move |cancelled| {
                sync.run(cancelled)?;
                std::fs::remove_dir_all(&sync.source)
            });
            Ok(vec![aside, PrepareStep { what, work: Work::Files { work, progress: None } }])
        }
    }
}

fn directory(
    path: &str,
    choice: Choice,
    folder: &RunFolder,
    origin: WorkspaceOrigin,
) -> Result<Vec<PrepareStep>, Fault> {
    if !Path::new(path).is_dir() {
        return Err(unavailable(format!("folder {path} not found on this worker")));
    }
    let sync = sync_from(Path::new(path), choice, TransferMode::Copy, folder, origin)?;
    let progress = Some(Arc::clone(&sync.progress));
    let work: FileWork = Box::new(move |cancelled| sync.run(cancelled).map(drop));
    Ok(vec![PrepareStep { what: format!("copying {path}"), work: Work::Files { work, progress } }])
}

fn sync_from(
    source: &Path,
    choice: Choice,
    mode: TransferMode,
    folder: &RunFolder,
    origin: WorkspaceOrigin,
) -> Result<Sync, Fault> {
    // No later build uses a fresh workspace.
    let manifest = if origin == WorkspaceOrigin::Fresh { None } else { Some(own(folder)?.join("manifest")) };
    Ok(Sync {
        source: source.to_owned(),
        target: folder.build.clone(),
        choice,
        manifest,
        mode,
        fresh: origin != WorkspaceOrigin::Reused,
        progress: Arc::default(),
    })
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
    let mut file = tokio::fs::File::open(path).await.map_err(missing)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0_u8; 1 << 20];
    loop {
        let read = file.read(&mut buffer).await.map_err(missing)?;
        if read == 0 {
            break;
        }
        hasher.update(buffer.get(..read).present("the bytes of a buffer that were read"));
    }
    Ok(Digest::from_hasher(hasher))
}

async fn download(url: &str, to: &str) -> Result<Digest, Fault> {
    let failed = |error: reqwest::Error| {
        unavailable(format!("cannot fetch archive {url}: {}", telemetry::error_chain(&error)))
    };
    let client =
        reqwest::Client::builder().connect_timeout(Duration::from_secs(10)).build().map_err(failed)?;
    let response =
        client.get(url).send().await.and_then(reqwest::Response::error_for_status).map_err(failed)?;
    let unwritable = |error: std::io::Error| Fault::Workspace(broken("writing the archive", &error));
    let mut file = tokio::fs::File::create(to).await.map_err(unwritable)?;
    let mut hasher = Sha256::new();
    let mut parts = response.bytes_stream();
    while let Some(part) = parts.try_next().await.map_err(failed)? {
        hasher.update(&part);
        file.write_all(&part).await.map_err(unwritable)?;
    }
    file.flush().await.map_err(unwritable)?;
    Ok(Digest::from_hasher(hasher))
}

fn unavailable(message: String) -> Fault {
    Fault::NoContent(Reason { code: ReasonCode::ContextUnavailable, message })
}

/// The reason for a failure of the worker's disk.
pub(crate) fn broken(what: &str, error: &std::io::Error) -> Reason {
    let full = error.kind() == std::io::ErrorKind::StorageFull;
    let code = if full { ReasonCode::DiskFull } else { ReasonCode::ContextUnavailable };
    Reason { code, message: format!("{what} failed: {error}") }
}
