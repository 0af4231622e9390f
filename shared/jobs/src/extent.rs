//! Limits the size of trees. Tasks can copy trees into each other at almost no cost, because equal parts are shared,
//! but every walk through them pays for every path.

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

/// A tree that is too large to walk.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExtentError {
    /// The folders are nested too deeply.
    #[error("{place}: nesting depth {depth} exceeds {max}", max = DEPTH_MAX)]
    Deep { place: String, depth: usize },
    /// The tree has too many entries.
    #[error("{place}: {entries} files and folders exceed the limit of {most}")]
    Large { place: String, entries: u64, most: u64 },
}

impl Extent {
    /// The size of a folder whose entries have subtrees of these sizes.
    pub(crate) fn of(subtrees: impl Iterator<Item = Self>) -> Self {
        let add = |all: Self, Self { entries, depth }| Self {
            entries: all.entries.saturating_add(entries).saturating_add(1),
            depth: all.depth.max(depth),
        };
        subtrees.fold(Self::default(), add)
    }

    /// The size of the subtree of an entry that is a folder of this size.
    pub(crate) fn nested(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }

    /// Fails if the tree is too large to be placed at `place` and walked.
    pub(crate) fn check(self, place: &str) -> Result<(), ExtentError> {
        let depth = self.depth + place.split('/').count();
        let shown = || if place.is_empty() { ".".to_owned() } else { place.to_owned() };
        if depth > DEPTH_MAX {
            return Err(ExtentError::Deep { place: shown(), depth });
        }
        if self.entries > ENTRIES_MAX {
            return Err(ExtentError::Large { place: shown(), entries: self.entries, most: ENTRIES_MAX });
        }
        Ok(())
    }
}
