//! What was set up on the disk, as it has to be found again for it to be used by another action.

use std::sync::Arc;

use rustix::fs::Stat;

use crate::{at::changed_at, plan::Plan};

/// How a file or symlink is recognised as the one that was put there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// One of the store's own files, which no action can change.
    Linked {
        /// Its inode.
        inode: u64,
    },
    /// A copy or a symlink: whatever is done to it moves the time of its last change.
    Own {
        /// Its inode.
        inode: u64,
        /// When it was last changed.
        changed_at: (i64, i64),
    },
}

impl Stamp {
    /// The stamp of a copy or symlink.
    pub(crate) fn own(stat: &Stat) -> Self {
        Self::Own { inode: stat.st_ino, changed_at: changed_at(stat) }
    }
}

/// A directory that was set up, with all below it.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) plan: Arc<Plan>,
    /// As [`Plan::files`].
    pub(crate) files: Box<[Stamp]>,
    /// As [`Plan::links`].
    pub(crate) links: Box<[Stamp]>,
    /// As [`Plan::dirs`]; None: it is not there any more.
    pub(crate) dirs: Box<[Option<Self>]>,
    /// Everything is there, and nothing else.
    pub(crate) whole: bool,
}

impl Made {
    /// Whether anything in it can be used again.
    pub(crate) fn has_whole(&self) -> bool {
        self.whole || self.dirs.iter().flatten().any(Self::has_whole)
    }

    /// The part at these positions, if it is whole.
    pub(crate) fn part(&self, steps: &[u32]) -> Option<&Self> {
        let mut made = self;
        for step in steps {
            made = made.dirs.get(*step as usize)?.as_ref()?;
        }
        made.whole.then_some(made)
    }

    /// Takes the part at these positions out; what it was part of is not whole any more.
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

    /// The path of the part at these positions, each name after a slash.
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
