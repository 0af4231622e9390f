//! Directory trees: whether the store has all of their blobs.

mod directory_memo;
mod output_tree;
mod output_tree_memo;
mod tree_check;
mod walk;
mod wire;

pub(crate) use directory_memo::Rule;
pub use tree_check::{TreeCheck, TreeFault};

use directory_memo::DirectoryMemo;
use output_tree_memo::TreeRefsMemo;

/// Checks trees, and remembers their directories and when each was last complete.
#[derive(Debug)]
pub(crate) struct Trees {
    directories: DirectoryMemo,
    outputs: TreeRefsMemo,
}

impl Trees {
    /// `memo_bytes`: size of each of its two caches.
    pub(crate) fn new(memo_bytes: u64) -> Self {
        Self { directories: DirectoryMemo::new(memo_bytes), outputs: TreeRefsMemo::new(memo_bytes) }
    }
}
