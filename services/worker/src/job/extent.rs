//! How large a tree is. Tasks can copy trees into each other for next to nothing, since what is equal is shared; whoever
//! walks through them pays for every path.

use super::tree::{Folder, Node, TreeError};

/// Files, folders and symlinks of a tree at most, each counted as often as a path leads to it.
const ENTRIES_MAX: u64 = 2_000_000;
/// Folders in each other at most: as the farm's store has it.
pub(crate) const DEPTH_MAX: usize = 1000;

/// The size of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Extent {
    /// Files, folders and symlinks in it, by all paths.
    pub(crate) entries: u64,
    /// Folders in each other in it.
    pub(crate) depth: usize,
}

impl Extent {
    /// Of a folder with such entries.
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

    /// Whether it is small enough to be at `place` and to be walked through.
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
    /// The size of what is in it.
    fn extent(&self) -> Extent {
        match self {
            Self::Folder(folder) => {
                let Extent { entries, depth } = folder.extent();
                Extent { entries, depth: depth + 1 }
            }
            Self::File { .. } | Self::Link(_) => Extent::default(),
        }
    }

    /// Fails where walking through it, at `place`, would never end in practice.
    pub(crate) fn check(&self, place: &str) -> Result<(), TreeError> {
        match self {
            Self::Folder(folder) => folder.check(place),
            Self::File { .. } | Self::Link(_) => Ok(()),
        }
    }
}

impl Folder {
    /// Likewise.
    pub(crate) fn check(&self, place: &str) -> Result<(), TreeError> {
        self.extent().check(place)
    }
}
