//! Reads a folder in the store: `Directory` messages of the Remote Execution API.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use cas::{Cas, CasError};
use invariant::impossible;
use model::{BlobDigest, DigestFunction};
use prost::Message as _;
use reapi::{
    digest::from_proto,
    directory::{AbsoluteTargets, check_with},
    execution::{self, Directory},
};

/// Maximum depth of a tree in directories, like that of the store.
const DEPTH_MAX: u32 = 1_000;
/// Maximum number of entries of a tree.
const ENTRIES_MAX: usize = 2_000_000;
/// Maximum size of a path in bytes, a limit of Linux.
const PATH_BYTES_MAX: usize = 4_096;
/// Maximum bytes of all paths of a tree, which are in memory while a workspace is filled. A small tree has many long
/// paths if its directories contain the same ones several times.
const PATHS_BYTES_MAX: usize = 256 << 20;
/// Maximum number of directories, and of their bytes, read at once.
const READ_DIRECTORIES: usize = 256;
const READ_BYTES: u64 = 4 << 20;

/// A folder in the store could not be brought to this worker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    /// The store lacks a directory or file.
    #[error("the store has no blob {digest} (path {path}); upload the folder again")]
    Missing { digest: BlobDigest, path: String },
    /// The folder cannot fill a workspace.
    #[error("the folder cannot be used: {0}")]
    Invalid(String),
    #[error(transparent)]
    Store(#[from] CasError),
    #[error("the files of the last build cannot be read")]
    Workspace(#[source] io::Error),
}

impl TreeError {
    pub(super) fn missing(digest: &BlobDigest, path: &Path) -> Self {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Self::Missing { digest: *digest, path: path.display().to_string() }
    }
}

/// An entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    Folder,
    File { digest: BlobDigest, executable: bool },
    Link { target: String },
}

/// The distinct directories of a tree, which is complete except for its files.
#[derive(Debug)]
pub(super) struct Directories {
    root: BlobDigest,
    found: HashMap<BlobDigest, Directory>,
}

/// Where an entry is in a tree.
#[derive(Debug, Default)]
struct Place {
    path: PathBuf,
    depth: u32,
}

impl Place {
    fn below(&self, name: &str) -> Result<Self, String> {
        let below = Self { path: self.path.join(name), depth: self.depth + 1 };
        if below.depth > DEPTH_MAX {
            return Err(format!("it is nested deeper than {DEPTH_MAX} directories"));
        }
        if below.path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(format!("it contains a path of more than {PATH_BYTES_MAX} bytes"));
        }
        Ok(below)
    }
}

impl Directories {
    /// Reads the directories of the tree with this root.
    pub(super) async fn read(cas: &Cas, root: &BlobDigest) -> Result<Self, TreeError> {
        let mut found = HashMap::new();
        let mut asked = HashSet::from([*root]);
        let mut waiting = vec![(*root, Place::default())];
        let mut entries = 0;
        while !waiting.is_empty() {
            let part = take_part(&mut waiting, READ_DIRECTORIES, READ_BYTES);
            let digests: Vec<BlobDigest> = part.iter().map(|(digest, _)| *digest).collect();
            let contents = cas.get_many(&digests).await?;
            for ((digest, place), content) in part.into_iter().zip(contents) {
                let content = content.ok_or_else(|| TreeError::missing(&digest, &place.path))?;
                let directory = decode(content)
                    .map_err(|why| TreeError::Invalid(format!("directory {digest}: {why}")))?;
                entries += directory.files.len() + directory.directories.len() + directory.symlinks.len();
                if entries > ENTRIES_MAX {
                    return Err(TreeError::Invalid(too_many()));
                }
                for node in &directory.directories {
                    let child = digest_of(node.digest.as_ref(), root.function).map_err(TreeError::Invalid)?;
                    if asked.insert(child) {
                        waiting.push((child, place.below(&node.name).map_err(TreeError::Invalid)?));
                    }
                }
                found.insert(digest, directory);
            }
        }
        Ok(Self { root: *root, found })
    }

    /// Returns all entries of the tree by path; its files may have at most `bytes_max` bytes in total.
    pub(super) fn expand(&self, bytes_max: u64) -> Result<BTreeMap<PathBuf, Node>, TreeError> {
        self.nodes(bytes_max, PATHS_BYTES_MAX).map_err(TreeError::Invalid)
    }

    fn nodes(&self, bytes_max: u64, paths_bytes_max: usize) -> Result<BTreeMap<PathBuf, Node>, String> {
        let function = self.root.function;
        let mut nodes = BTreeMap::new();
        let mut paths_bytes: usize = 0;
        let mut add = |path: PathBuf, node: Node| {
            paths_bytes = paths_bytes.saturating_add(path.as_os_str().len());
            nodes.insert(path, node);
            if nodes.len() > ENTRIES_MAX {
                return Err(too_many());
            }
            if paths_bytes > paths_bytes_max {
                return Err(format!("the paths of its entries have more than {paths_bytes_max} bytes"));
            }
            Ok(())
        };
        let mut bytes: u64 = 0;
        let mut waiting = vec![(self.root, Place::default())];
        while let Some((digest, place)) = waiting.pop() {
            let Some(directory) = self.found.get(&digest) else {
                impossible!("directory {digest} of folder {} was not read", self.root);
                continue;
            };
            for node in &directory.directories {
                let below = place.below(&node.name)?;
                add(below.path.clone(), Node::Folder)?;
                waiting.push((digest_of(node.digest.as_ref(), function)?, below));
            }
            for node in &directory.files {
                let digest = digest_of(node.digest.as_ref(), function)?;
                bytes = bytes.saturating_add(digest.size);
                let file = Node::File { digest, executable: node.is_executable };
                add(place.below(&node.name)?.path, file)?;
            }
            for node in &directory.symlinks {
                add(place.below(&node.name)?.path, Node::Link { target: node.target.clone() })?;
            }
            if bytes > bytes_max {
                return Err(format!("its files have more than {bytes_max} bytes (unpacked_bytes_max)"));
            }
        }
        Ok(nodes)
    }
}

fn too_many() -> String {
    format!("it has more than {ENTRIES_MAX} entries")
}

fn decode(content: Bytes) -> Result<Directory, String> {
    let directory = Directory::decode(content).map_err(|error| format!("not a Directory: {error}"))?;
    check_with(&directory, AbsoluteTargets::Allowed).map_err(|fault| fault.to_string())?;
    Ok(directory)
}

fn digest_of(digest: Option<&execution::Digest>, function: DigestFunction) -> Result<BlobDigest, String> {
    let digest = digest.ok_or_else(|| "an entry has no digest".to_owned())?;
    from_proto(digest, function).map_err(|error| error.to_string())
}

/// Removes from the end of `waiting` the blobs to read at once: at most `count_max`; one, or at most `bytes_max` bytes.
pub(super) fn take_part<T>(
    waiting: &mut Vec<(BlobDigest, T)>,
    count_max: usize,
    bytes_max: u64,
) -> Vec<(BlobDigest, T)> {
    let mut bytes: u64 = 0;
    let fit = waiting.iter().rev().take(count_max).take_while(|(digest, _)| {
        bytes = bytes.saturating_add(digest.size);
        bytes <= bytes_max
    });
    let count = fit.count().max(1);
    waiting.split_off(waiting.len().saturating_sub(count))
}

#[cfg(test)]
mod tests {
    use reapi::{digest::to_proto, execution::DirectoryNode};

    use super::*;

    #[test]
    fn the_paths_of_a_tree_are_limited_in_total() {
        let function = DigestFunction::Sha256;
        let digest = |level: u8| function.digest(&[level]);
        // Each directory contains the next one twice: one more level doubles the number of paths.
        let directory = |level: u8| {
            let below = |name: &str| DirectoryNode {
                name: name.repeat(10),
                digest: Some(to_proto(&digest(level + 1))),
            };
            let directories = if level < 3 { vec![below("a"), below("b")] } else { Vec::new() };
            (digest(level), Directory { directories, ..Directory::default() })
        };
        let tree = Directories { root: digest(0), found: (0..=3).map(directory).collect() };
        let bytes = 2 * 10 + 4 * 21 + 8 * 32;
        assert_eq!(tree.nodes(0, bytes).unwrap().len(), 14);
        let why = tree.nodes(0, bytes - 1).unwrap_err();
        assert_eq!(why, "the paths of its entries have more than 359 bytes");
    }
}
