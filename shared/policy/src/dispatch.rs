//! Which waiting build starts next, and where.
//!
//! Strict priority inside a group (its head is given in that order), one build a group in turn, first fit to an
//! idle workspace. A build that cannot be placed stops nobody: here every workspace fits every build.

use std::collections::VecDeque;

/// The first waiting builds of a group, in the order in which they must start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupHead<B> {
    /// The builds.
    pub builds: VecDeque<B>,
}

/// A build and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement<B, W> {
    /// Index of its group in what was given.
    pub group: usize,
    /// The build.
    pub build: B,
    /// The workspace.
    pub workspace: W,
}

/// Places the heads of `groups` (whose turn it is first) into `idle` workspaces (tried in this order).
pub fn place<B, W>(groups: Vec<GroupHead<B>>, idle: Vec<W>) -> Vec<Placement<B, W>> {
    let mut turns: VecDeque<(usize, GroupHead<B>)> = groups.into_iter().enumerate().collect();
    let mut free = idle.into_iter();
    let mut placed = Vec::new();
    while let Some((group, mut head)) = turns.pop_front() {
        // An exhausted group leaves the round; the next one has its turn.
        let Some(build) = head.builds.pop_front() else { continue };
        let Some(workspace) = free.next() else { break };
        placed.push(Placement { group, build, workspace });
        turns.push_back((group, head));
    }
    placed
}

#[cfg(test)]
mod tests;
