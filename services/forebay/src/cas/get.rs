//! `forebay cas get`

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use model::BlobDigest;
use prost::Message as _;
use reapi::execution::Directory;
use remote::Remote;

use crate::{
    failure::{FAILED, Failure},
    stdout,
};

/// What to fetch.
#[derive(Debug, Args)]
pub(super) struct GetArgs {
    /// The blob, or with --output FOLDER/ the folder: HASH/SIZE
    #[arg(value_name = "DIGEST")]
    digest: BlobDigest,
    /// Where to write it [default: stdout]; with a slash at its end, a folder to be made
    #[arg(long, short, value_name = "PATH")]
    output: Option<PathBuf>,
}

/// Fetches it.
pub(super) async fn run(args: &GetArgs, remote: &Remote) -> Result<ExitCode, Failure> {
    match &args.output {
        Some(path) if path.as_os_str().as_encoded_bytes().ends_with(b"/") => {
            folder(remote, args.digest, path).await?;
        }
        Some(path) => remote.fetch(&args.digest, path).await?,
        None => {
            let mut fault = None;
            remote
                .read_to(&args.digest, async |piece| {
                    if fault.is_none() {
                        fault = stdout::bytes(piece).err();
                    }
                    Ok(())
                })
                .await?;
            if let Some(fault) = fault {
                return Err(fault);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn folder(remote: &Remote, digest: BlobDigest, path: &std::path::Path) -> Result<(), Failure> {
    let mut waiting = vec![(path.to_owned(), digest)];
    while let Some((path, digest)) = waiting.pop() {
        let failed = |what: &str, error: &dyn std::error::Error| {
            Failure::new(FAILED, format!("{what} {}", path.display()), error)
        };
        std::fs::create_dir_all(&path).map_err(|error| failed("cannot make", &error))?;
        let content = if digest.is_empty_blob() { Vec::new() } else { remote.read(&digest).await? };
        let directory = Directory::decode(content.as_slice())
            .map_err(|error| Failure::new(FAILED, format!("{digest} is no folder"), &error))?;
        // Names that lead elsewhere are refused.
        reapi::directory::check_with(&directory, reapi::directory::AbsoluteTargets::Allowed)
            .map_err(|error| Failure::new(FAILED, format!("{digest} is no sound folder"), &error))?;
        let of = |digest: Option<&reapi::execution::Digest>| {
            digest
                .and_then(|digest| reapi::digest::from_proto(digest, remote.function()).ok())
                .unwrap_or_else(|| remote.function().empty())
        };
        for link in &directory.symlinks {
            std::os::unix::fs::symlink(&link.target, path.join(&link.name))
                .map_err(|error| failed("cannot make a link in", &error))?;
        }
        for file in &directory.files {
            let to = path.join(&file.name);
            remote.fetch(&of(file.digest.as_ref()), &to).await?;
            if file.is_executable {
                use std::os::unix::fs::PermissionsExt as _;
                std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755))
                    .map_err(|error| failed("cannot make a program in", &error))?;
            }
        }
        waiting.extend(directory.directories.iter().map(|it| (path.join(&it.name), of(it.digest.as_ref()))));
    }
    Ok(())
}
