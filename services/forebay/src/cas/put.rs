//! `forebay cas put`

use std::{collections::HashMap, path::PathBuf, process::ExitCode};

use clap::Args;
use model::BlobDigest;
use remote::{Remote, Source};
use serde::Serialize;

use crate::{
    exec_inputs,
    failure::{Failure, USAGE},
    globals::Globals,
    stdout,
};

/// What to upload.
#[derive(Debug, Args)]
pub(super) struct PutArgs {
    /// Files and folders
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// What was uploaded.
#[derive(Debug, Serialize)]
struct Put {
    path: String,
    kind: &'static str,
    digest: BlobDigest,
}

/// Uploads; what the store has already is not sent again.
pub(super) async fn run(args: &PutArgs, remote: &Remote, globals: &Globals) -> Result<ExitCode, Failure> {
    for path in &args.paths {
        let (kind, digest, blobs) = if path.is_dir() {
            let (digest, blobs) = exec_inputs::scan(path, &["**".to_owned()], remote.function()).await?;
            ("folder", digest, blobs)
        } else {
            let digest = hash(path, remote).await?;
            ("file", digest, HashMap::from([(digest, Source::File(path.clone()))]))
        };
        remote.upload(&blobs).await?;
        let put = Put { path: path.display().to_string(), kind, digest };
        if globals.json {
            stdout::json(&put)?;
        } else {
            stdout::line(&format!("{digest}  {}", put.path))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn hash(path: &std::path::Path, remote: &Remote) -> Result<BlobDigest, Failure> {
    use tokio::io::AsyncReadExt as _;
    let failed =
        |error: std::io::Error| Failure::new(USAGE, format!("cannot read {}", path.display()), &error);
    let mut file = tokio::fs::File::open(path).await.map_err(failed)?;
    let mut hasher = remote.function().hasher();
    let mut piece = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut piece).await.map_err(failed)?;
        match piece.get(..read) {
            Some(part) if !part.is_empty() => hasher.update(part),
            _ => return Ok(hasher.finish()),
        }
    }
}
