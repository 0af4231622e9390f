//! What a workspace holds when the command starts. Programs that fetch run under the shim, like the command itself:
//! they die with the lease, and their output is the build's.

use std::{path::Path, time::Duration};

use futures::TryStreamExt as _;
use model::{Context, Digest, Reason, ReasonCode};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::folder::RunFolder;

/// One command of a preparation.
pub(crate) struct PrepareStep {
    /// What it is for, in a message when it fails.
    pub(crate) what: String,
    /// The program and its arguments.
    pub(crate) argv: Vec<String>,
}

const COPY: &str = r#"exec cp -a --reflink=auto -- "$1/." ."#;

/// A shallow fetch where the server allows it, else everything.
const GIT: &str = r#"set -e
git init -q .
git -c advice.detachedHead=false fetch -q --depth 1 -- "$1" "$2" 2>/dev/null && exec git checkout -q --detach FETCH_HEAD
git fetch -q --tags -- "$1" "+refs/heads/*:refs/remotes/origin/*"
if git rev-parse -q --verify "refs/remotes/origin/$2^{commit}" >/dev/null; then set -- "$1" "refs/remotes/origin/$2"; fi
exec git checkout -q --detach "$2"
"#;

const APPLY: &str = r#"exec git apply --whitespace=nowarn -- "$1""#;
const UNPACK: &str = r#"exec tar -xf "$1""#;

/// Does what needs no process, and returns the commands for the rest.
pub(crate) async fn steps(context: &Context, folder: &RunFolder) -> Result<Vec<PrepareStep>, Reason> {
    match context {
        Context::Empty => Ok(Vec::new()),
        Context::Directory { path } => {
            if !Path::new(path).is_dir() {
                return Err(unavailable(format!("there is no folder {path} on this worker")));
            }
            Ok(vec![shell(format!("copying {path}"), COPY, &[path])])
        }
        Context::Git { url, revision, patch } => {
            let mut steps = vec![shell(format!("fetching {revision} from {url}"), GIT, &[url, revision])];
            if let Some(patch) = patch {
                let file = folder.temporary.join("forebay.patch");
                tokio::fs::write(&file, patch).await.map_err(|error| broken("writing the patch", &error))?;
                steps.push(shell("applying the patch".to_owned(), APPLY, &[&file.display().to_string()]));
            }
            Ok(steps)
        }
        Context::Archive { location, digest } => {
            let file = archive(location, digest.as_ref(), folder).await?;
            Ok(vec![shell(format!("unpacking {location}"), UNPACK, &[&file])])
        }
    }
}

fn shell(what: String, script: &str, arguments: &[&str]) -> PrepareStep {
    let mut argv = vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned(), "forebay".to_owned()];
    argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    PrepareStep { what, argv }
}

/// The archive as a verified local file; returns its path.
async fn archive(location: &str, wanted: Option<&Digest>, folder: &RunFolder) -> Result<String, Reason> {
    let (file, found) = if location.starts_with('/') {
        // Checked where it is: it is unpacked from there.
        (location.to_owned(), if wanted.is_some() { Some(hash(location).await?) } else { None })
    } else {
        let file = folder.temporary.join("forebay.archive").display().to_string();
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

async fn hash(path: &str) -> Result<Digest, Reason> {
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

async fn download(url: &str, to: &str) -> Result<Digest, Reason> {
    let failed = |error: reqwest::Error| {
        unavailable(format!("archive {url} cannot be fetched: {}", telemetry::error_chain(&error)))
    };
    let client =
        reqwest::Client::builder().connect_timeout(Duration::from_secs(10)).build().map_err(failed)?;
    let response =
        client.get(url).send().await.and_then(reqwest::Response::error_for_status).map_err(failed)?;
    let unwritable = |error: std::io::Error| broken("writing the archive", &error);
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

pub(crate) fn unavailable(message: String) -> Reason {
    Reason { code: ReasonCode::ContextUnavailable, message }
}

/// A fault of the worker's own disk.
pub(crate) fn broken(what: &str, error: &std::io::Error) -> Reason {
    let full = error.kind() == std::io::ErrorKind::StorageFull;
    let code = if full { ReasonCode::DiskFull } else { ReasonCode::ContextUnavailable };
    Reason { code, message: format!("{what} failed: {error}") }
}
