//! A folder in the store as a source.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cas::Cas;
use disk::Place;
use model::BlobDigest;
use nix::unistd::{getegid, geteuid};
use tokio::runtime::Handle;

use super::{
    bounds::Bounds,
    cancel::check,
    content::{copy, has_digest},
    manifest::{Entry, Kind, Manifest, Version},
    progress::Progress,
    source::{Attributes, Source},
    tree::{Directories, Node, TreeError, take_part},
};

/// Maximum number of files, and of their bytes, fetched at once.
const FETCH_FILES: usize = 1_000;
const FETCH_BYTES: u64 = 256 << 20;
/// Modes of files, and of executable files and folders.
const FILE_MODE: u32 = 0o644;
const EXECUTABLE_MODE: u32 = 0o755;

/// Maximum time to fetch a file again that the store evicted since it was fetched. A stop of the build waits for it.
const FETCH_AGAIN: Duration = Duration::from_secs(30);

/// The store does not answer. The inner error of an [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[error("the store does not answer: {0}")]
pub(crate) struct StoreAway(String);

/// Brings the content of a folder in the store to this worker's part of the store, as far as a workspace needs it.
#[derive(Clone)]
pub(crate) struct TreeFetch {
    pub(crate) cas: Cas,
    /// Digest of the folder.
    pub(crate) root: BlobDigest,
    /// Folder of the workspace.
    pub(crate) target: PathBuf,
    /// List of entries from the last sync to the workspace, if it is reused.
    pub(crate) before: Option<PathBuf>,
    /// Maximum number of bytes of all files.
    pub(crate) bytes_max: u64,
    pub(crate) progress: Arc<Progress>,
}

/// A file of a tree that a workspace needs: its digest, and its path for messages.
type Wanted = (BlobDigest, PathBuf);

impl TreeFetch {
    /// Returns the folder as a source. Its files are kept for at least [`cas::CasConfig::keep_min`].
    pub(crate) async fn run(self) -> Result<TreeSource, TreeError> {
        let Self { cas, root, target, before, bytes_max, progress } = self;
        // An earlier attempt may have counted some.
        progress.files.store(0, Ordering::Relaxed);
        progress.bytes.store(0, Ordering::Relaxed);
        let directories = Directories::read(&cas, &root).await?;
        let planned = tokio::task::spawn_blocking(move || {
            let nodes = directories.expand(bytes_max)?;
            let wanted = wanted(&nodes, &target, before.as_deref()).map_err(TreeError::Workspace)?;
            Ok::<_, TreeError>((nodes, wanted))
        });
        let planned = planned.await.map_err(|error| TreeError::Workspace(io::Error::other(error)))?;
        let (nodes, mut waiting) = planned?;
        progress.files_total.store(waiting.len() as u64, Ordering::Relaxed);
        let mut fetched = HashMap::with_capacity(waiting.len());
        while !waiting.is_empty() {
            let part = take_part(&mut waiting, FETCH_FILES, FETCH_BYTES);
            // A copy gets a mode of its own: the store's executable files are not needed.
            let blobs: Vec<(BlobDigest, bool)> = part.iter().map(|(digest, _)| (*digest, false)).collect();
            let found = cas.local_paths(&blobs).await?;
            for ((digest, path), local) in part.into_iter().zip(found) {
                let local = local.ok_or_else(|| TreeError::missing(&digest, &path))?;
                fetched.insert(digest, local);
                progress.files.fetch_add(1, Ordering::Relaxed);
                progress.bytes.fetch_add(digest.size, Ordering::Relaxed);
            }
        }
        Ok(TreeSource { cas, nodes, fetched, runtime: Handle::current() })
    }
}

/// The distinct files that are not known to be unchanged in the workspace.
fn wanted(nodes: &BTreeMap<PathBuf, Node>, target: &Path, before: Option<&Path>) -> io::Result<Vec<Wanted>> {
    let before = before.map_or_else(|| Ok(Manifest::default()), Manifest::load)?;
    let mut seen = HashSet::new();
    let mut wanted = Vec::new();
    for (path, node) in nodes {
        let (Node::File { digest, .. }, entry) = (node, entry_of(node)) else { continue };
        let is_unchanged =
            |known: &Entry| known.is_unchanged(&entry, fs::symlink_metadata(target.join(path)).ok().as_ref());
        if !before.0.get(path).is_some_and(is_unchanged) && seen.insert(*digest) {
            wanted.push((*digest, path.clone()));
        }
    }
    Ok(wanted)
}

fn entry_of(node: &Node) -> Entry {
    let (kind, source) = match node {
        Node::Folder => (Kind::Folder, None),
        Node::File { digest, .. } => (Kind::File, Some(Version::Digest(*digest))),
        Node::Link { .. } => (Kind::Link, None),
    };
    Entry { kind, source, target: None }
}

/// A folder in the store; the files that the workspace needs were fetched.
#[derive(Debug)]
pub(crate) struct TreeSource {
    cas: Cas,
    nodes: BTreeMap<PathBuf, Node>,
    /// Paths of the store's own files, which must not be changed or linked.
    fetched: HashMap<BlobDigest, PathBuf>,
    runtime: Handle,
}

impl TreeSource {
    /// The digest of the file, and whether it is executable.
    fn file(&self, path: &Path) -> io::Result<(&BlobDigest, bool)> {
        match self.nodes.get(path) {
            Some(Node::File { digest, executable }) => Ok((digest, *executable)),
            Some(Node::Folder | Node::Link { .. }) | None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn open(&self, digest: &BlobDigest, cancelled: &AtomicBool) -> io::Result<File> {
        if let Some(path) = self.fetched.get(digest) {
            match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return opened,
            }
        }
        // The store evicted the blob since, or a process of the last build changed the copy in the workspace.
        check(cancelled)?;
        self.cas.forget(digest);
        let found = self.runtime.block_on(self.fetch_again(digest));
        check(cancelled)?;
        File::open(found?)
    }

    async fn fetch_again(&self, digest: &BlobDigest) -> io::Result<PathBuf> {
        let away = |why: String| io::Error::other(StoreAway(why));
        let late = |_| away(format!("it did not send blob {digest} within {} s", FETCH_AGAIN.as_secs()));
        let fetched = tokio::time::timeout(FETCH_AGAIN, self.cas.local_path(digest, false)).await;
        let found = fetched.map_err(late)?.map_err(|error| {
            if error.is_full() {
                io::Error::from(io::ErrorKind::StorageFull)
            } else if error.is_about_content() {
                io::Error::other(error)
            } else {
                away(telemetry::error_chain(&error))
            }
        })?;
        let gone =
            || io::Error::new(io::ErrorKind::NotFound, format!("the store no longer has blob {digest}"));
        found.ok_or_else(gone)
    }
}

impl Source for TreeSource {
    fn entries(&self, _: &Path, _: &AtomicBool) -> io::Result<BTreeMap<PathBuf, Entry>> {
        Ok(self.nodes.iter().map(|(path, node)| (path.clone(), entry_of(node))).collect())
    }

    fn attributes(&self, path: &Path, kind: Kind) -> Option<Attributes> {
        let node = self.nodes.get(path).filter(|node| entry_of(node).kind == kind)?;
        let (size, mode) = match node {
            Node::File { digest, executable: false } => (digest.size, FILE_MODE),
            Node::File { digest, executable: true } => (digest.size, EXECUTABLE_MODE),
            Node::Folder | Node::Link { .. } => (0, EXECUTABLE_MODE),
        };
        Some(Attributes { size, mode, owner: (geteuid().as_raw(), getegid().as_raw()) })
    }

    fn link_target(&self, path: &Path) -> io::Result<PathBuf> {
        match self.nodes.get(path) {
            Some(Node::Link { target }) => Ok(target.into()),
            Some(Node::Folder | Node::File { .. }) | None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn is_same(&self, path: &Path, target: &Place, cancelled: &AtomicBool) -> io::Result<bool> {
        has_digest(target, self.file(path)?.0, cancelled)
    }

    /// The store has no times: the file gets the current time.
    fn fetch(&self, path: &Path, target: &Place, _: bool, bounds: &Bounds<'_>) -> io::Result<()> {
        let (digest, executable) = self.file(path)?;
        let mode = if executable { EXECUTABLE_MODE } else { FILE_MODE };
        copy(&self.open(digest, bounds.cancelled())?, target, mode, None, bounds)
    }
}

#[cfg(test)]
mod tests;
