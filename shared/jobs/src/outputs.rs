//! Fetches the files of a job that match the build's output globs into a folder, to be stored like the
//! outputs of any build.

use std::{
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use globset::GlobSet;
use remote::RemoteError;
use tokio::io::AsyncWriteExt as _;

use crate::{
    blobs,
    runner::Runner,
    task_error::TaskError,
    tree::{Content, Folder, Node, join},
};

/// Maximum number of concurrent fetches.
const FETCHES: usize = 16;

/// A file to fetch.
struct Wanted {
    path: String,
    content: Arc<Content>,
    executable: bool,
}

/// Writes the matching files of `tree` into `folder`, which is empty or missing. A symlink is replaced by the file
/// that it leads to.
pub(crate) async fn fetch_all(
    runner: &Runner,
    tree: &Arc<Folder>,
    globs: &GlobSet,
    folder: &Path,
) -> Result<(), String> {
    // Also created if no file matches: a job without outputs is valid.
    let made = tokio::fs::create_dir_all(folder).await;
    made.map_err(|error| format!("cannot create the folder for outputs: {error}"))?;
    tree.check("").map_err(|error| format!("cannot search for the outputs: {error}"))?;
    let mut wanted = Vec::new();
    find(tree, tree, "", globs, &mut wanted);
    let all = wanted.into_iter().map(|file| {
        let to = folder.join(&file.path);
        async move {
            let fetched = fetch_file(runner, &file, to).await;
            fetched.map_err(|why| format!("cannot fetch output {}: {why}", file.path))
        }
    });
    stream::iter(all).buffer_unordered(FETCHES).try_collect().await
}

fn find(root: &Arc<Folder>, folder: &Folder, place: &str, globs: &GlobSet, wanted: &mut Vec<Wanted>) {
    for (name, node) in folder.entries() {
        let path = join(place, name);
        match node {
            Node::Folder(below) => find(root, below, &path, globs, wanted),
            Node::File { content, executable } if globs.is_match(&path) => {
                wanted.push(Wanted { path, content: Arc::clone(content), executable: *executable });
            }
            Node::Link(_) if globs.is_match(&path) => {
                let end = root.resolve(&path).and_then(|mut found| found.pop());
                if let Some((_, Node::File { content, executable })) = end {
                    wanted.push(Wanted { path, content, executable });
                }
            }
            Node::File { .. } | Node::Link(_) => {}
        }
    }
}

async fn fetch_file(runner: &Runner, file: &Wanted, to: PathBuf) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    if let Some(parent) = to.parent() {
        tokio::fs::create_dir_all(parent).await.map_err(failed)?;
    }
    if let Some(near) = file.content.path() {
        let mut from = tokio::fs::File::from_std(disk::open_file(near).map_err(failed)?);
        let mut to = tokio::fs::File::create(&to).await.map_err(failed)?;
        tokio::io::copy(&mut from, &mut to).await.map_err(failed)?;
        to.flush().await.map_err(failed)?;
    } else {
        let digest = file.content.digest().map_err(|error| telemetry::error_chain(&error))?;
        let mut fetched = runner.patience.patiently(|| blobs::fetch(&runner.remote, &digest, &to)).await;
        if let Err(RemoteError::Missing { .. }) = fetched {
            runner.remake(&[digest]).await.map_err(TaskError::into_reason)?;
            fetched = runner.patience.patiently(|| blobs::fetch(&runner.remote, &digest, &to)).await;
        }
        fetched.map_err(|error| telemetry::error_chain(&error))?;
    }
    let mode = if file.executable { 0o755 } else { 0o644 };
    tokio::fs::set_permissions(&to, std::fs::Permissions::from_mode(mode)).await.map_err(failed)
}
