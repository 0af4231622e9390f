//! `forebay cas put`: uploads files and folders.

use std::{
    collections::HashMap,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use clap::Args;
use model::{BlobDigest, DigestFunction};
use remote::{Meter, Remote, Source};
use serde::Serialize;

use crate::{
    exec_inputs,
    failure::{FAILED, Failure, USAGE},
    globals::Globals,
    progress::{Progress, When},
    stdout,
};

/// Options of `forebay cas put`.
#[derive(Debug, Args)]
pub(super) struct PutArgs {
    /// Files and folders to upload
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// When to show progress
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    progress: When,
}

/// One uploaded file or folder.
#[derive(Debug, Serialize)]
struct Put {
    path: String,
    kind: &'static str,
    digest: BlobDigest,
}

/// Uploads the blobs that the store does not have.
pub(super) async fn run(args: &PutArgs, remote: &Remote, globals: &Globals) -> Result<ExitCode, Failure> {
    let progress = Progress::new(args.progress);
    for path in &args.paths {
        progress.phase(format!("reading {}", path.display()));
        let (kind, digest, blobs) = if path.is_dir() {
            let (digest, blobs) = exec_inputs::scan(path, &["**".to_owned()], remote.function()).await?;
            ("folder", digest, blobs)
        } else {
            let digest = hash(path, remote.function()).await?;
            ("file", digest, HashMap::from([(digest, Source::File(path.clone()))]))
        };
        let meter = Arc::<Meter>::default();
        let uploading = remote.upload_telling(&blobs, &meter);
        progress.transfer(&format!("uploading {}", path.display()), &meter, uploading).await?;
        let put = Put { path: path.display().to_string(), kind, digest };
        if globals.json {
            stdout::json(&put)?;
        } else {
            stdout::line(&format!("{digest}  {}", put.path))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Computes the digest of a file.
pub(crate) async fn hash(path: &Path, function: DigestFunction) -> Result<BlobDigest, Failure> {
    let path = path.to_owned();
    let hashed = tokio::task::spawn_blocking(move || {
        let failed =
            |error: std::io::Error| Failure::new(USAGE, format!("cannot read {}", path.display()), &error);
        let mut file = File::open(&path).map_err(failed)?;
        let mut hasher = function.hasher();
        let mut piece = vec![0; 1 << 20];
        loop {
            let read = file.read(&mut piece).map_err(failed)?;
            match piece.get(..read) {
                Some(part) if !part.is_empty() => hasher.update(part),
                _ => return Ok(hasher.finish()),
            }
        }
    });
    hashed.await.map_err(|error| Failure::new(FAILED, "cannot hash the file", &error))?
}
