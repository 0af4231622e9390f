//! Content-addressed folders: inputs and outputs of a job's tasks, without moving a byte.
//!
//! A tree is never changed in place while it is shared: trees share their common parts,
//! including the encoded messages.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    io,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use invariant::{Present as _, impossible};
use model::{BlobDigest, DigestFunction};
use reapi::{
    canonical::encode,
    digest::to_proto,
    execution::{Directory, DirectoryNode, FileNode, SymlinkNode},
};

use crate::extent::{Extent, ExtentError};

/// The hash function of all trees and blobs of a job.
pub(crate) const FUNCTION: DigestFunction = DigestFunction::Sha256;
/// Maximum number of symlinks that a path may lead through.
const LINKS_MAX: usize = 40;

/// An entry of a folder.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    File {
        content: Arc<Content>,
        executable: bool,
    },
    /// A symlink, with its target.
    Link(Arc<str>),
    Folder(Arc<Folder>),
}

/// The content of a file.
#[derive(Debug)]
pub(crate) struct Content {
    digest: OnceLock<BlobDigest>,
    /// Path of the local file; `None` if only the farm's store has it.
    pub(crate) path: Option<PathBuf>,
    /// Whether the farm's store is known to have it.
    pub(crate) sent: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct Folder {
    entries: BTreeMap<Arc<str>, Node>,
    message: OnceLock<(BlobDigest, Bytes)>,
    extent: OnceLock<Extent>,
    /// Whether the farm's store is known to have this folder and everything below it.
    pub(crate) sent: AtomicBool,
}

/// A tree that cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    #[error("cannot read file {path}")]
    Unreadable {
        path: String,
        #[source]
        source: io::Error,
    },
    /// A symlink that would lead elsewhere on another machine.
    #[error(
        "symlink {name:?} points to {target}: absolute targets do not exist on an executor, use a relative one"
    )]
    AbsoluteLink { name: String, target: String },
    /// The tree is too large to walk.
    #[error(transparent)]
    Extent(ExtentError),
}

impl Node {
    /// The size of the entry's subtree.
    fn extent(&self) -> Extent {
        match self {
            Self::Folder(folder) => folder.extent().nested(),
            Self::File { .. } | Self::Link(_) => Extent::default(),
        }
    }

    /// Fails if the subtree at `place` is too large to walk.
    pub(crate) fn check(&self, place: &str) -> Result<(), TreeError> {
        match self {
            Self::Folder(folder) => folder.check(place),
            Self::File { .. } | Self::Link(_) => Ok(()),
        }
    }
}

impl Content {
    /// The content of a local file.
    pub(crate) fn local(path: PathBuf) -> Self {
        Self { digest: OnceLock::new(), path: Some(path), sent: AtomicBool::new(false) }
    }

    /// The content of a local file whose digest is known.
    pub(crate) fn hashed(path: PathBuf, digest: BlobDigest) -> Self {
        Self { digest: OnceLock::from(digest), path: Some(path), sent: AtomicBool::new(false) }
    }

    /// Content that the farm's store has.
    pub(crate) fn remote(digest: BlobDigest) -> Self {
        Self { digest: OnceLock::from(digest), path: None, sent: AtomicBool::new(true) }
    }

    /// The local file, if there is one. It is opened through no link ([`disk::open_file`]): others may change the workspace.
    pub(crate) fn path(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    /// The digest. Reads the file at the first call.
    pub(crate) fn digest(&self) -> Result<BlobDigest, TreeError> {
        if let Some(digest) = self.digest.get() {
            return Ok(*digest);
        }
        let path = self.path.clone().present("the local file of content without a digest");
        let digest = disk::open_file(&path)
            .and_then(|file| hashing::hash_reader(file, FUNCTION))
            .map_err(|source| TreeError::Unreadable { path: path.display().to_string(), source })?;
        Ok(*self.digest.get_or_init(|| digest))
    }

    /// Records that the farm's store has it.
    pub(crate) fn mark_sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }
}

impl Clone for Folder {
    /// Copies only the entries: the cached values of the original do not apply to a copy that will be changed.
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone(), ..Self::default() }
    }
}

impl Folder {
    pub(crate) fn entries(&self) -> &BTreeMap<Arc<str>, Node> {
        &self.entries
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Access for a change: copies a shared folder and clears its cached values.
    fn own(this: &mut Arc<Self>) -> &mut Self {
        let own = Arc::make_mut(this);
        own.message = OnceLock::new();
        own.extent = OnceLock::new();
        own.sent = AtomicBool::new(false);
        own
    }

    /// Inserts or replaces an entry.
    pub(crate) fn put(this: &mut Arc<Self>, name: &str, node: Node) {
        Self::own(this).entries.insert(name.into(), node);
    }

    /// Places `node` at `path` and creates the folders above. A folder placed on a folder keeps the entries that it
    /// does not contain; any other node replaces what was there.
    pub(crate) fn insert_at(this: &mut Arc<Self>, path: &str, node: Node) {
        let (name, rest) = split(path);
        if name.is_empty() {
            if let Node::Folder(folder) = node {
                Self::merge(this, &folder);
            }
            return;
        }
        let own = Self::own(this);
        let Some(rest) = rest else { return own.merge_entry(name, node) };
        let (name, mut below) = match own.entries.remove_entry(name) {
            Some((name, Node::Folder(below))) => (name, below),
            Some((name, Node::File { .. } | Node::Link(_))) => (name, Arc::default()),
            None => (name.into(), Arc::default()),
        };
        Self::insert_at(&mut below, rest, node);
        own.entries.insert(name, Node::Folder(below));
    }

    fn merge_entry(&mut self, name: &str, node: Node) {
        match (self.entries.get_mut(name), node) {
            (Some(Node::Folder(below)), Node::Folder(above)) => Self::merge(below, &above),
            (Some(there), node) => *there = node,
            (None, node) => drop(self.entries.insert(name.into(), node)),
        }
    }

    /// Merges all entries of `above` into `this`.
    pub(crate) fn merge(this: &mut Arc<Self>, above: &Arc<Self>) {
        if Arc::ptr_eq(this, above) || above.is_empty() {
            return;
        }
        if this.is_empty() {
            *this = Arc::clone(above);
            return;
        }
        let own = Self::own(this);
        for (name, node) in &above.entries {
            own.merge_entry(name, node.clone());
        }
    }

    /// Removes the entry at `path`, if it exists.
    pub(crate) fn remove_at(this: &mut Arc<Self>, path: &str) {
        if this.at(path).is_none() {
            return;
        }
        let (name, rest) = split(path);
        let own = Self::own(this);
        match (own.entries.get_mut(name), rest) {
            (Some(Node::Folder(folder)), Some(rest)) => Self::remove_at(folder, rest),
            (Some(_), None) => drop(own.entries.remove(name)),
            (Some(_) | None, _) => impossible!("a folder lost its entry {path:?}"),
        }
    }

    /// The entry at `path`, without following symlinks.
    pub(crate) fn at(&self, path: &str) -> Option<&Node> {
        let (name, rest) = split(path);
        let node = self.entries.get(name)?;
        match (rest, node) {
            (None, node) => Some(node),
            (Some(rest), Node::Folder(folder)) => folder.at(rest),
            (Some(_), Node::File { .. } | Node::Link(_)) => None,
        }
    }

    /// The nodes needed for `path` to exist: the symlinks on the way and the final entry, each with its path. A
    /// broken symlink is itself an entry; `None` if nothing exists there.
    pub(crate) fn resolve(self: &Arc<Self>, path: &str) -> Option<Vec<(String, Node)>> {
        let mut names: VecDeque<String> = path.split('/').map(str::to_owned).collect();
        let mut folders: Vec<(String, Arc<Self>)> = vec![(String::new(), Arc::clone(self))];
        let mut found: Vec<(String, Node)> = Vec::new();
        while let Some(name) = names.pop_front() {
            let (place, folder) = folders.last()?;
            match name.as_str() {
                "" | "." => continue,
                ".." => {
                    folders.pop();
                    continue;
                }
                _ => {}
            }
            let Some(node) = folder.entries.get(name.as_str()) else {
                return (!found.is_empty() && names.is_empty()).then_some(found);
            };
            let place = join(place, &name);
            match node {
                Node::Folder(folder) => folders.push((place, Arc::clone(folder))),
                Node::File { .. } if names.is_empty() => {
                    found.push((place, node.clone()));
                    return Some(found);
                }
                Node::File { .. } => return None,
                Node::Link(target) => {
                    found.push((place, node.clone()));
                    if found.len() > LINKS_MAX || target.starts_with('/') {
                        return names.is_empty().then_some(found);
                    }
                    for part in target.split('/').rev() {
                        names.push_front(part.to_owned());
                    }
                }
            }
        }
        let (place, folder) = folders.pop()?;
        found.push((place, Node::Folder(folder)));
        Some(found)
    }

    /// The size of the folder's tree.
    pub(crate) fn extent(&self) -> Extent {
        *self.extent.get_or_init(|| Extent::of(self.entries.values().map(Node::extent)))
    }

    /// Fails if the folder at `place` is too large to walk.
    pub(crate) fn check(&self, place: &str) -> Result<(), TreeError> {
        self.extent().check(place).map_err(TreeError::Extent)
    }

    /// The encoded message and its digest.
    pub(crate) fn message(&self) -> Result<&(BlobDigest, Bytes), TreeError> {
        if let Some(known) = self.message.get() {
            return Ok(known);
        }
        let mut directory = Directory::default();
        for (name, node) in &self.entries {
            let name = name.to_string();
            match node {
                Node::File { content, executable } => directory.files.push(FileNode {
                    name,
                    digest: Some(to_proto(&content.digest()?)),
                    is_executable: *executable,
                    node_properties: None,
                }),
                Node::Link(target) if target.starts_with('/') => {
                    return Err(TreeError::AbsoluteLink { name, target: target.to_string() });
                }
                Node::Link(target) => {
                    let target = target.to_string();
                    directory.symlinks.push(SymlinkNode { name, target, node_properties: None });
                }
                Node::Folder(folder) => {
                    let digest = Some(to_proto(&folder.message()?.0));
                    directory.directories.push(DirectoryNode { name, digest });
                }
            }
        }
        // The map is sorted, so each kind is sorted by name.
        Ok(self.message.get_or_init(|| encode(&directory, FUNCTION)))
    }
}

/// Splits off the first component of a path.
fn split(path: &str) -> (&str, Option<&str>) {
    match path.split_once('/') {
        Some((name, rest)) => (name, Some(rest)),
        None => (path, None),
    }
}

/// The path of `name` in the folder `place`.
pub(crate) fn join(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}/{name}") }
}

/// Passes each file of a tree to `take`; equal folders are visited once.
pub(crate) fn each_file(node: &Node, seen: &mut HashSet<usize>, take: &mut impl FnMut(&Content)) {
    match node {
        Node::File { content, .. } => take(content),
        Node::Link(_) => {}
        Node::Folder(folder) => each_file_in(folder, seen, take),
    }
}

fn each_file_in(folder: &Arc<Folder>, seen: &mut HashSet<usize>, take: &mut impl FnMut(&Content)) {
    if seen.insert(Arc::as_ptr(folder).addr()) {
        for node in folder.entries().values() {
            each_file(node, seen, take);
        }
    }
}

#[cfg(test)]
mod tests;
