//! `forebay cas put`: uploads files and folders.

use std::{collections::HashMap, path::PathBuf, process::ExitCode, sync::Arc};

use clap::Args;
use command_line::{failure::Failure, globals::Globals, stdout};
use model::BlobDigest;
use remote::{Meter, Remote, Source};
use serde::Serialize;

use crate::progress::{Progress, When};

/// Options of `forebay cas put`.
#[derive(Debug, Args)]
pub(super) struct PutArgs {
    /// Files and folders to upload. Symlinks in a folder must have relative targets; `submit --dir` keeps all symlinks
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
            let (digest, blobs) = transfer::scan(path, &["**".to_owned()], remote.function()).await?;
            ("folder", digest, blobs)
        } else {
            let digest = transfer::hash(path, remote.function()).await?;
            ("file", digest, HashMap::from([(digest, Source::File(path.clone()))]))
        };
        let meter = Arc::<Meter>::default();
        let uploading = remote.upload_with_progress(&blobs, &meter);
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
