//! `forebay cas get`: downloads a blob or folder.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use command_line::{
    failure::{Failure, say},
    globals::Globals,
    stdout,
};
use model::BlobDigest;
use prost::Message as _;
use reapi::{
    directory::{AbsoluteTargets, check_with},
    execution::Directory,
};
use remote::{Meter, Placed, Remote};

use super::list;
use crate::{
    download::download,
    progress::{Progress, When},
    remote::print,
};

/// Options of `forebay cas get`.
#[derive(Debug, Args)]
pub(super) struct GetArgs {
    /// Digest of the blob or folder: HASH/SIZE
    #[arg(value_name = "DIGEST")]
    digest: BlobDigest,
    /// Where to write to, `-` for stdout. If PATH ends with a slash or is an existing folder, the content of the folder
    /// DIGEST is written into it; else the blob DIGEST is written to it, which for a folder is its Directory message
    /// [default: print to stdout, a folder as a list]
    #[arg(long, short, value_name = "PATH")]
    output: Option<PathBuf>,
    /// When to show progress
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    progress: When,
}

/// Largest blob, in bytes, that is checked for being a folder when it is printed or written.
const FOLDER_BYTES_MAX: u64 = 4 << 20;

/// Downloads the blob or folder.
pub(super) async fn run(args: &GetArgs, remote: &Remote, globals: &Globals) -> Result<ExitCode, Failure> {
    let (meter, progress) = (Meter::default(), Progress::new(args.progress));
    match &args.output {
        Some(path) if path.as_os_str() == "-" => print(remote, &args.digest).await?,
        Some(path) if path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir() => {
            list::folder(remote, &args.digest).await?;
            let fetching = transfer::download_folder(remote, args.digest, path, &meter);
            progress.transfer("downloading", &meter, fetching).await?;
        }
        Some(path) => {
            let placed = Placed { digest: args.digest, below: None, path: path.clone(), executable: false };
            download(remote, &[placed], &progress, Failure::from).await?;
            note_message(&args.digest, path);
        }
        None if args.digest.size <= FOLDER_BYTES_MAX => {
            let content = remote.read(&args.digest).await?;
            if is_folder(&content) {
                let listed = list::ListArgs::of(args.digest);
                return list::run(&listed, remote, globals).await;
            }
            stdout::bytes(&content)?;
        }
        None => print(remote, &args.digest).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Says so if the message of a folder was written to a file, and not the content of the folder.
fn note_message(digest: &BlobDigest, path: &Path) {
    let may_be = digest.size <= FOLDER_BYTES_MAX && path.is_file();
    if may_be && std::fs::read(path).is_ok_and(|content| is_folder(&content)) {
        let path = path.display();
        say(&format!(
            "{digest} is a folder, and {path} is its Directory message; --output {path}/ writes its content"
        ));
    }
}

/// Whether the content is exactly the canonical encoding of a valid, non-empty Directory message, which a file
/// is unlikely to be.
fn is_folder(content: &[u8]) -> bool {
    Directory::decode(content).is_ok_and(|folder| {
        let entries = folder.files.len() + folder.directories.len() + folder.symlinks.len();
        entries > 0
            && folder.encode_to_vec() == content
            && check_with(&folder, AbsoluteTargets::Allowed).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use reapi::execution::{Directory, FileNode};

    use super::is_folder;

    #[test]
    fn a_folder_is_told_from_a_file() {
        let digest = reapi::digest::to_proto(&model::DigestFunction::Sha256.digest(b"a"));
        let file = FileNode { name: "a".into(), digest: Some(digest), ..FileNode::default() };
        let folder = Directory { files: vec![file], ..Directory::default() }.encode_to_vec();
        assert!(is_folder(&folder));
        for other in [&b""[..], b"a", b"hello\n", b"\n", &folder[..folder.len() - 1]] {
            assert!(!is_folder(other), "{other:?}");
        }
    }
}
