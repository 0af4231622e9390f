//! Folders by content: what a job's tasks read and make, without moving a byte.
//!
//! A tree is never changed in place while anyone else holds it: what two trees have in common they share, with the messages
//! that it is encoded in.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io::{self, Read as _},
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use model::{BlobDigest, DigestFunction};
use reapi::{
    canonical::encode,
    digest::to_proto,
    execution::{Directory, DirectoryNode, FileNode, SymlinkNode},
};

use super::extent::Extent;

/// How everything here is hashed.
pub(crate) const FUNCTION: DigestFunction = DigestFunction::Sha256;
/// Symlinks that a path may lead through.
const LINKS_MAX: usize = 40;
const BUFFER: usize = 256 << 10;

/// Something in a folder.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    /// A file.
    File {
        /// What is in it.
        content: Arc<Content>,
        /// Whether it can be run.
        executable: bool,
    },
    /// A symlink and where it points to.
    Link(Arc<str>),
    /// A folder.
    Folder(Arc<Folder>),
}

/// What is in a file.
#[derive(Debug)]
pub(crate) struct Content {
    digest: OnceLock<BlobDigest>,
    /// Where it is; absent: in the farm's store.
    pub(super) path: Option<PathBuf>,
    /// Whether the farm's store has it, as far as we know.
    pub(super) sent: AtomicBool,
}

/// A folder.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    entries: BTreeMap<Arc<str>, Node>,
    message: OnceLock<(BlobDigest, Bytes)>,
    extent: OnceLock<Extent>,
    /// Whether the farm's store has it and all below.
    pub(super) sent: AtomicBool,
}

/// A tree that cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    /// A file that cannot be read.
    #[error("file {path} cannot be read")]
    Unreadable {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A symlink that is another one elsewhere.
    #[error("symlink {name:?} points to {target}: absolute targets mean nothing to an executor")]
    AbsoluteLink {
        /// Its name.
        name: String,
        /// Where it points to.
        target: String,
    },
    /// Nothing can work in folders so deep.
    #[error("{place}: {depth} folders in each other are too many, {max} are taken", max = super::extent::DEPTH_MAX)]
    Deep {
        /// Where they begin.
        place: String,
        /// How many.
        depth: usize,
    },
    /// It takes too long to walk through it.
    #[error("{place}: {entries} files and folders are too many, {most} are taken")]
    Large {
        /// Where they are.
        place: String,
        /// How many.
        entries: u64,
        /// At most.
        most: u64,
    },
}

impl Content {
    /// What is in a file on this machine.
    pub(crate) fn local(path: PathBuf) -> Self {
        Self { digest: OnceLock::new(), path: Some(path), sent: AtomicBool::new(false) }
    }

    /// Likewise, whose digest is known.
    pub(crate) fn hashed(path: PathBuf, digest: BlobDigest) -> Self {
        Self { digest: OnceLock::from(digest), path: Some(path), sent: AtomicBool::new(false) }
    }

    /// What the farm's store has.
    pub(crate) fn remote(digest: BlobDigest) -> Self {
        Self { digest: OnceLock::from(digest), path: None, sent: AtomicBool::new(true) }
    }

    /// Its file on this machine, where it has one.
    pub(crate) fn path(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    /// Its digest. Reads the file the first time.
    pub(crate) fn digest(&self) -> Result<BlobDigest, TreeError> {
        if let Some(digest) = self.digest.get() {
            return Ok(*digest);
        }
        let path = self.path.clone().unwrap_or_default();
        let digest = hash(&path)
            .map_err(|source| TreeError::Unreadable { path: path.display().to_string(), source })?;
        Ok(*self.digest.get_or_init(|| digest))
    }

    /// Notes that the farm's store has it.
    pub(crate) fn mark_sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }
}

fn hash(path: &PathBuf) -> io::Result<BlobDigest> {
    let mut file = File::open(path)?;
    let mut hasher = FUNCTION.hasher();
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(hasher.finish());
        }
        hasher.update(buffer.get(..count).unwrap_or_default());
    }
}

impl Clone for Folder {
    /// Made to be changed: what is known of the old one does not hold of it.
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone(), ..Self::default() }
    }
}

impl Folder {
    /// What is in it, by name.
    pub(crate) fn entries(&self) -> &BTreeMap<Arc<str>, Node> {
        &self.entries
    }

    /// Whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Ready to be changed.
    fn own(this: &mut Arc<Self>) -> &mut Self {
        let own = Arc::make_mut(this);
        own.message = OnceLock::new();
        own.extent = OnceLock::new();
        own.sent = AtomicBool::new(false);
        own
    }

    /// Puts an entry in, whatever was there.
    pub(crate) fn put(this: &mut Arc<Self>, name: &str, node: Node) {
        Self::own(this).entries.insert(name.into(), node);
    }

    /// Lays `node` at `path`, making the folders above. A folder on a folder leaves what it does not name itself;
    /// everything else replaces what was there.
    pub(crate) fn lay(this: &mut Arc<Self>, path: &str, node: Node) {
        let (name, rest) = split(path);
        if name.is_empty() {
            if let Node::Folder(folder) = node {
                Self::lay_all(this, &folder);
            }
            return;
        }
        let own = Self::own(this);
        let Some(rest) = rest else { return own.lay_one(name, node) };
        let (name, mut below) = match own.entries.remove_entry(name) {
            Some((name, Node::Folder(below))) => (name, below),
            Some((name, Node::File { .. } | Node::Link(_))) => (name, Arc::default()),
            None => (name.into(), Arc::default()),
        };
        Self::lay(&mut below, rest, node);
        own.entries.insert(name, Node::Folder(below));
    }

    fn lay_one(&mut self, name: &str, node: Node) {
        match (self.entries.get_mut(name), node) {
            (Some(Node::Folder(below)), Node::Folder(above)) => Self::lay_all(below, &above),
            (Some(there), node) => *there = node,
            (None, node) => drop(self.entries.insert(name.into(), node)),
        }
    }

    /// Lays everything of `above` on `this`.
    pub(crate) fn lay_all(this: &mut Arc<Self>, above: &Arc<Self>) {
        if Arc::ptr_eq(this, above) || above.is_empty() {
            return;
        }
        if this.is_empty() {
            *this = Arc::clone(above);
            return;
        }
        let own = Self::own(this);
        for (name, node) in &above.entries {
            own.lay_one(name, node.clone());
        }
    }

    /// Takes away what is at `path`, if anything is.
    pub(crate) fn take(this: &mut Arc<Self>, path: &str) {
        if this.at(path).is_none() {
            return;
        }
        let (name, rest) = split(path);
        let own = Self::own(this);
        match (own.entries.get_mut(name), rest) {
            (Some(Node::Folder(folder)), Some(rest)) => Self::take(folder, rest),
            (Some(_), None) => drop(own.entries.remove(name)),
            (Some(_) | None, _) => {}
        }
    }

    /// What is at `path`, without a look at where symlinks lead.
    pub(crate) fn at(&self, path: &str) -> Option<&Node> {
        let (name, rest) = split(path);
        let node = self.entries.get(name)?;
        match (rest, node) {
            (None, node) => Some(node),
            (Some(rest), Node::Folder(folder)) => folder.at(rest),
            (Some(_), Node::File { .. } | Node::Link(_)) => None,
        }
    }

    /// What it takes to have something at `path`: the symlinks that it leads through, and what is at their end, each with
    /// its path. A symlink that leads nowhere is itself something; absent: there is nothing.
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

    /// Its size.
    pub(crate) fn extent(&self) -> Extent {
        *self.extent.get_or_init(|| Extent::of(self.entries.values()))
    }

    /// Its message and the digest of that.
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
        // Entries are sorted already, each kind by its names.
        Ok(self.message.get_or_init(|| encode(&directory, FUNCTION)))
    }
}

/// The first name of a path, and what follows it.
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

#[cfg(test)]
mod tests;
