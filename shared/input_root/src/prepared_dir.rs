//! Records the state of a tree on the disk, which must be unchanged for another action to use the tree.

use std::sync::Arc;

use rustix::fs::Stat;

use crate::{at::changed_at, plan::Plan};

/// Identifies a file or symlink as the one that was put there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// One of the store's own files, which no action can change.
    Linked { inode: u64 },
    /// A copy, a symlink or a directory: every modification changes its time of last change.
    Own {
        inode: u64,
        /// Time of the last change of the inode.
        changed_at: (i64, i64),
    },
}

impl Stamp {
    /// The stamp of a copy, symlink or directory.
    pub(crate) fn own(stat: &Stat) -> Self {
        Self::Own { inode: stat.st_ino, changed_at: changed_at(stat) }
    }
}

/// A directory that was set up, with all below it.
#[derive(Debug)]
pub(crate) struct PreparedDir {
    pub(crate) plan: Arc<Plan>,
    /// The directory itself when it was last as planned; `None` if that is unknown. Each change of its names, owner,
    /// mode or attributes changes this.
    pub(crate) stamp: Option<Stamp>,
    /// Stamps of the files, in the order of [`Plan::files`].
    pub(crate) files: Box<[Stamp]>,
    /// Stamps of the symlinks, in the order of [`Plan::links`].
    pub(crate) links: Box<[Stamp]>,
    /// Subdirectories, in the order of [`Plan::dirs`]; `None` if one is gone.
    pub(crate) dirs: Box<[Option<Self>]>,
    /// Whether everything is there, and nothing else.
    pub(crate) whole: bool,
}

impl PreparedDir {
    /// Whether anything in it can be reused.
    pub(crate) fn has_whole(&self) -> bool {
        self.whole || self.dirs.iter().flatten().any(Self::has_whole)
    }

    /// Returns the part at these positions, if it is whole.
    pub(crate) fn part(&self, steps: &[u32]) -> Option<&Self> {
        let mut made = self;
        for step in steps {
            made = made.dirs.get(*step as usize)?.as_ref()?;
        }
        made.whole.then_some(made)
    }

    /// Removes and returns the part at these positions. The directories above it are no longer whole.
    pub(crate) fn take(&mut self, steps: &[u32]) -> Option<Self> {
        let (last, before) = steps.split_last()?;
        let mut made = self;
        made.whole = false;
        for step in before {
            made = made.dirs.get_mut(*step as usize)?.as_mut()?;
            made.whole = false;
        }
        made.dirs.get_mut(*last as usize)?.take()
    }

    /// Returns the path of the part at these positions, each name after a slash.
    pub(crate) fn path(&self, steps: &[u32]) -> Option<String> {
        let mut path = String::new();
        let mut plan = &self.plan;
        for step in steps {
            let (name, child) = plan.dirs.get(*step as usize)?;
            path.push('/');
            path.push_str(name);
            plan = child;
        }
        Some(path)
    }
}
