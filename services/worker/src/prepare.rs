//! What a workspace holds when the command starts. Programs that fetch run under the shim, like the command itself:
//! they die with the lease, and their output is the build's.

use std::{io, path::Path, sync::atomic::AtomicBool, time::Duration};

use futures::TryStreamExt as _;
use model::{Context, Digest, Reason, ReasonCode};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    folder::RunFolder,
    git::{Repository, Wanted},
    sync::{self, Means, Sync},
};

/// What the workspace is like before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ground {
    /// Empty, and nothing will be left.
    Fresh,
    /// Empty; the next build will find what this one leaves.
    New,
    /// As a similar build left it.
    Reused,
}

/// Why a workspace was not filled.
pub(crate) enum Fault {
    /// What is wanted cannot be had. The workspace is as it was before.
    NoContent(Reason),
    /// The workspace, or the disk.
    Workspace(Reason),
}

/// One step of a preparation.
pub(crate) struct PrepareStep {
    /// What it is for, in a message when it fails.
    pub(crate) what: String,
    pub(crate) work: Work,
}

/// What is done in a step.
pub(crate) enum Work {
    /// A program.
    Command {
        /// It and its arguments.
        argv: Vec<String>,
        /// Variables beside those of every preparation ([`crate::environment::of_preparation`]).
        env: Vec<(String, String)>,
    },
    /// What the worker does itself, to the workspace alone; it ends early when the flag is set.
    Files(FileWork),
}

pub(crate) type FileWork = Box<dyn FnOnce(&AtomicBool) -> io::Result<()> + Send>;

/// How a program of a step ends when what is wanted cannot be had and it has touched no file of the workspace.
pub(crate) const NO_CONTENT: i32 = 69;

const COPY: &str = r#"exec cp -a --reflink=auto -- "$1/." ."#;

const UNPACK: &str = r#"exec tar -xf "$1""#;
const UNPACK_ASIDE: &str = r#"rm -rf "$2" && mkdir "$2" || exit; tar -xf "$1" -C "$2" || exit 69"#;

/// Does what needs no process, and returns the rest. `settings` is the operator's file with settings of git.
pub(crate) async fn steps(
    context: &Context,
    folder: &RunFolder,
    ground: Ground,
    settings: Option<&Path>,
) -> Result<Vec<PrepareStep>, Fault> {
    match context {
        Context::Empty => Ok(Vec::new()),
        Context::Directory { path } => directory(path, folder, ground),
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
            let repository = Repository::ready(own, &folder.build, ground, settings)
                .map_err(|error| Fault::Workspace(broken("making the repository ready", &error)))?;
            Ok(repository.steps(&Wanted { url, revision, patch }))
        }
        Context::Archive { location, digest } => {
            let file = archive(location, digest.as_ref(), folder).await?;
            let what = format!("unpacking {location}");
            if ground == Ground::Fresh {
                return Ok(vec![shell(what, UNPACK, &[&file])]);
            }
            let sync = sync_from(&own(folder)?.join("unpacked"), Means::Move, folder, ground)?;
            let aside = shell(what.clone(), UNPACK_ASIDE, &[&file, &sync.source.display().to_string()]);
            let work: FileWork = Box::new(move |cancelled| {
                sync.run(cancelled)?;
                std::fs::remove_dir_all(&sync.source)
            });
            Ok(vec![aside, PrepareStep { what, work: Work::Files(work) }])
        }
    }
}

fn directory(path: &str, folder: &RunFolder, ground: Ground) -> Result<Vec<PrepareStep>, Fault> {
    if !Path::new(path).is_dir() {
        return Err(unavailable(format!("there is no folder {path} on this worker")));
    }
    let what = format!("copying {path}");
    let copy = shell(what.clone(), COPY, &[path]);
    if ground == Ground::Fresh {
        return Ok(vec![copy]);
    }
    let sync = sync_from(Path::new(path), Means::Copy, folder, ground)?;
    let (work, then): (FileWork, _) = match ground {
        Ground::Reused => (Box::new(move |cancelled| sync.run(cancelled).map(drop)), None),
        Ground::New | Ground::Fresh => {
            (Box::new(move |cancelled| sync::note(&sync.source, &sync.manifest, cancelled)), Some(copy))
        }
    };
    Ok([PrepareStep { what, work: Work::Files(work) }].into_iter().chain(then).collect())
}

fn sync_from(source: &Path, means: Means, folder: &RunFolder, ground: Ground) -> Result<Sync, Fault> {
    Ok(Sync {
        source: source.to_owned(),
        target: folder.build.clone(),
        manifest: own(folder)?.join("manifest"),
        means,
        fresh: ground != Ground::Reused,
    })
}

fn own(folder: &RunFolder) -> Result<&Path, Fault> {
    folder.own().map_err(|error| Fault::Workspace(broken("making the workspace", &error)))
}

pub(crate) fn shell(what: String, script: &str, arguments: &[&str]) -> PrepareStep {
    let mut argv = vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned(), "forebay".to_owned()];
    argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    PrepareStep { what, work: Work::Command { argv, env: Vec::new() } }
}

/// The archive as a verified local file; returns its path.
async fn archive(location: &str, wanted: Option<&Digest>, folder: &RunFolder) -> Result<String, Fault> {
    let (file, found) = if location.starts_with('/') {
        // Checked where it is: it is unpacked from there.
        (location.to_owned(), if wanted.is_some() { Some(hash(location).await?) } else { None })
    } else {
        let file = own(folder)?.join("archive").display().to_string();
        (file.clone(), Some(download(location, &file).await?))
    };
    if !Path::new(&file).is_file() {
        return Err(unavailable(format!("there is no archive {location} on this worker")));
    }
    match (wanted, found) {
        (Some(wanted), Some(found)) if *wanted != found => {
            Err(unavailable(format!("archive {location} has digest {found}, {wanted} is wanted")))
        }
        (_, _) => Ok(file),
    }
}

async fn hash(path: &str) -> Result<Digest, Fault> {
    let missing = |error: std::io::Error| unavailable(format!("archive {path} cannot be read: {error}"));
    let mut file = tokio::fs::File::open(path).await.map_err(missing)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0_u8; 1 << 20];
    loop {
        let read = file.read(&mut buffer).await.map_err(missing)?;
        let Some(part) = buffer.get(..read).filter(|part| !part.is_empty()) else { break };
        hasher.update(part);
    }
    Ok(Digest::from_hasher(hasher))
}

async fn download(url: &str, to: &str) -> Result<Digest, Fault> {
    let failed = |error: reqwest::Error| {
        unavailable(format!("archive {url} cannot be fetched: {}", telemetry::error_chain(&error)))
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

/// A fault of the worker's own disk.
pub(crate) fn broken(what: &str, error: &std::io::Error) -> Reason {
    let full = error.kind() == std::io::ErrorKind::StorageFull;
    let code = if full { ReasonCode::DiskFull } else { ReasonCode::ContextUnavailable };
    Reason { code, message: format!("{what} failed: {error}") }
}
