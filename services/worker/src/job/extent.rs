//! Limits the size of trees. Tasks can copy trees into each other at almost no cost, because equal parts are shared,
//! but every walk through them pays for every path.

use super::tree::{Folder, Node, TreeError};

/// Maximum number of files, folders and symlinks in a tree, each counted once for every path that leads to it.
const ENTRIES_MAX: u64 = 2_000_000;
/// Maximum nesting depth of folders, the same as in the farm's store.
pub(crate) const DEPTH_MAX: usize = 1000;

/// The size of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Extent {
    /// Number of files, folders and symlinks, counted by path.
    pub(crate) entries: u64,
    /// Nesting depth of its folders.
    pub(crate) depth: usize,
}

impl Extent {
    /// The size of a folder with these entries.
    pub(crate) fn of<'a>(nodes: impl Iterator<Item = &'a Node>) -> Self {
        let add = |all: Self, node: &Node| {
            let Self { entries, depth } = node.extent();
            Self {
                entries: all.entries.saturating_add(entries).saturating_add(1),
                depth: all.depth.max(depth),
            }
        };
        nodes.fold(Self::default(), add)
    }

    /// Fails if the tree is too large to be placed at `place` and walked.
    fn check(self, place: &str) -> Result<(), TreeError> {
        let depth = self.depth + place.split('/').count();
        let shown = || if place.is_empty() { ".".to_owned() } else { place.to_owned() };
        if depth > DEPTH_MAX {
            return Err(TreeError::Deep { place: shown(), depth });
        }
        if self.entries > ENTRIES_MAX {
            return Err(TreeError::Large { place: shown(), entries: self.entries, most: ENTRIES_MAX });
        }
        Ok(())
    }
}

impl Node {
    /// The size of the node's subtree.
    fn extent(&self) -> Extent {
        match self {
            Self::Folder(folder) => {
                let Extent { entries, depth } = folder.extent();
                Extent { entries, depth: depth + 1 }
            }
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

impl Folder {
    /// Fails if the folder at `place` is too large to walk.
    pub(crate) fn check(&self, place: &str) -> Result<(), TreeError> {
        self.extent().check(place)
    }
}
