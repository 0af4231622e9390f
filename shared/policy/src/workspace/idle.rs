//! The idle workspaces, indexed by the keys of their last builds.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

use invariant::impossible;
use model::{BuildRequirements, WarmKey, WorkerId, WorkerProperties, WorkspaceKeys, WorkspaceKind};
use roaring::RoaringBitmap;

use super::BuildKeys;
use crate::worker_offers::can_run;

/// Maximum number of pairs of a workspace and a key compared to find the one that shares most; the least recent
/// workspaces are ignored beyond that. This bounds the time of a look-up.
const PAIRS_MAX: usize = 20_000;

/// What a build asks of its workspace.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// The keys by which a warm workspace is chosen, if it asks for one.
    pub keys: Option<&'a BuildKeys>,
    /// Properties that its worker must offer.
    pub requirements: &'a BuildRequirements,
    /// Workers that must not run it.
    pub avoid: &'a [WorkerId],
}

/// A workspace for a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment<W> {
    /// The workspace that is assigned.
    pub workspace: W,
    /// How it was chosen, for a build that asks for a warm workspace.
    pub kind: Option<WorkspaceKind>,
}

/// The idle workspaces, indexed by what their last builds left.
///
/// Each has a number that grows with every workspace that becomes idle, so that sets of numbers are ordered by recency.
/// A look-up intersects such sets: one for each target.
#[derive(Debug, Clone)]
pub struct IdleWorkspaces<W> {
    by_id: HashMap<W, u32>,
    by_number: HashMap<u32, Idle<W>>,
    exact: HashMap<WarmKey, RoaringBitmap>,
    version: HashMap<WarmKey, RoaringBitmap>,
    prefix: HashMap<WarmKey, RoaringBitmap>,
    next: u32,
}

#[derive(Debug, Clone)]
struct Idle<W> {
    id: W,
    keys: Option<WorkspaceKeys>,
}

impl<W> Default for IdleWorkspaces<W> {
    fn default() -> Self {
        Self {
            by_id: HashMap::new(),
            by_number: HashMap::new(),
            exact: HashMap::new(),
            version: HashMap::new(),
            prefix: HashMap::new(),
            next: 0,
        }
    }
}

impl<W: Clone + Eq + Hash> IdleWorkspaces<W> {
    /// Adds an idle workspace; `keys` are those of its last build if that left anything. If it is added again with the
    /// same keys, it keeps its place.
    pub fn insert(&mut self, id: W, keys: Option<WorkspaceKeys>) {
        let known = self.by_id.get(&id).and_then(|number| self.by_number.get(number));
        if known.is_some_and(|known| known.keys == keys) {
            return;
        }
        self.remove(&id);
        if self.next == u32::MAX {
            self.renumber();
        }
        let number = self.next;
        self.next += 1;
        if let Some(keys) = &keys {
            self.exact.entry(keys.exact).or_default().insert(number);
            self.version.entry(keys.version).or_default().insert(number);
            for key in &keys.prefixes {
                self.prefix.entry(*key).or_default().insert(number);
            }
        }
        self.by_id.insert(id.clone(), number);
        self.by_number.insert(number, Idle { id, keys });
    }

    /// Removes a workspace that is busy or gone.
    pub fn remove(&mut self, id: &W) {
        let Some(number) = self.by_id.remove(id) else { return };
        let Some(idle) = self.by_number.remove(&number) else {
            impossible!("the workspace with number {number} is not known");
            return;
        };
        let Some(keys) = idle.keys else { return };
        remove_number(&mut self.exact, keys.exact, number);
        remove_number(&mut self.version, keys.version, number);
        for key in keys.prefixes {
            remove_number(&mut self.prefix, key, number);
        }
    }

    /// The workspace for a build by the first algorithm, else by the second; `None` means a new one.
    pub fn choose(&self, build: &BuildKeys) -> Option<(WorkspaceKind, W)> {
        self.choose_among(build, &RoaringBitmap::new(), |_| true)
    }

    /// Assigns a different workspace to each of `builds`: by the two algorithms to those that ask for a warm one, and the
    /// least special and least valuable one of `sample` to all others, so that warm workspaces and special workers remain
    /// for the builds that benefit. `offers` is what the worker of a workspace offers. Idle workspaces that are not in
    /// `sample` are only assigned for their warmth. A build without a workspace left gets `None`.
    pub fn assign<'a>(
        &self,
        builds: &[Wish<'_>],
        mut sample: Vec<W>,
        offers: impl Fn(&W) -> &'a WorkerProperties,
        is_of: impl Fn(&W, &WorkerId) -> bool,
    ) -> Vec<Option<Assignment<W>>>
    where
        W: Ord,
    {
        let mut assigned: Vec<Option<Assignment<W>>> = vec![None; builds.len()];
        sample.sort_by_cached_key(|id| (offers(id).0.len(), self.value(id), id.clone()));
        let mut left = Left { excluded: RoaringBitmap::new(), sample: sample.into() };
        // Builds with requirements come first: they have the smaller choice.
        let is_plain = |build: &Wish<'_>| build.requirements.is_empty() && build.avoid.is_empty();
        for (build, assignment) in builds.iter().zip(&mut assigned).filter(|(build, _)| !is_plain(build)) {
            let suits = |id: &W| {
                !build.avoid.iter().any(|worker| is_of(id, worker)) && can_run(offers(id), build.requirements)
            };
            *assignment =
                self.take_warm(build, &mut left, suits).or_else(|| self.take_new(build, &mut left, suits));
        }
        for (build, assignment) in builds.iter().zip(&mut assigned).filter(|(build, _)| is_plain(build)) {
            *assignment = self.take_warm(build, &mut left, |_| true);
        }
        for (build, assignment) in builds.iter().zip(&mut assigned) {
            if is_plain(build) && assignment.is_none() {
                *assignment = self.take_new(build, &mut left, |_| true);
            }
        }
        assigned
    }

    /// Takes the suitable workspace that is warm for the build.
    fn take_warm(
        &self,
        build: &Wish<'_>,
        left: &mut Left<W>,
        suits: impl Fn(&W) -> bool,
    ) -> Option<Assignment<W>> {
        let (kind, workspace) = self.choose_among(build.keys?, &left.excluded, suits)?;
        left.excluded.extend(self.by_id.get(&workspace));
        left.sample.retain(|id| *id != workspace);
        Some(Assignment { workspace, kind: Some(kind) })
    }

    /// Takes the first suitable workspace of the sample.
    fn take_new(
        &self,
        build: &Wish<'_>,
        left: &mut Left<W>,
        suits: impl Fn(&W) -> bool,
    ) -> Option<Assignment<W>> {
        let at = left.sample.iter().position(suits)?;
        let workspace = left.sample.remove(at)?;
        left.excluded.extend(self.by_id.get(&workspace));
        let kind = build.keys.map(|_| WorkspaceKind::New);
        Some(Assignment { workspace, kind })
    }

    fn choose_among(
        &self,
        build: &BuildKeys,
        excluded: &RoaringBitmap,
        suits: impl Fn(&W) -> bool,
    ) -> Option<(WorkspaceKind, W)> {
        let is_suitable = |number: &u32| self.by_number.get(number).is_some_and(|idle| suits(&idle.id));
        let exact = self.exact.get(&build.workspace.exact).map(|set| set - excluded);
        if let Some(number) = exact.and_then(|set| set.iter().rev().find(is_suitable)) {
            return Some((WorkspaceKind::Exact, self.by_number.get(&number)?.id.clone()));
        }
        let number = self.most_overlapping(build, &(self.overlapping(build)? - excluded), is_suitable)?;
        Some((WorkspaceKind::Prefix, self.by_number.get(&number)?.id.clone()))
    }

    /// The value of a workspace: `None` without anything left by a build, otherwise the higher the more recent.
    pub fn value(&self, id: &W) -> Option<u32> {
        let number = self.by_id.get(id)?;
        self.by_number.get(number)?.keys.as_ref().map(|_| *number)
    }

    /// Number of idle workspaces.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether no workspace is idle.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Ids of all idle workspaces.
    pub fn ids(&self) -> impl Iterator<Item = &W> {
        self.by_id.keys()
    }

    /// The workspaces that share the tool's version and something of every target.
    fn overlapping(&self, build: &BuildKeys) -> Option<RoaringBitmap> {
        let none = RoaringBitmap::new();
        let numbers_with = |key: &WarmKey| self.prefix.get(key).unwrap_or(&none);
        let size = |(target, package): &(&RoaringBitmap, &RoaringBitmap)| target.len().max(package.len());
        let mut targets: Vec<_> = build
            .targets
            .iter()
            .map(|keys| (numbers_with(&keys.target), numbers_with(&keys.package)))
            .collect();
        // The rarest first, so that the following steps have less to compare.
        targets.sort_unstable_by_key(size);
        targets.dedup_by(|a, b| std::ptr::eq(a.0, b.0) && std::ptr::eq(a.1, b.1));
        let (first, others) = targets.split_first()?;
        let mut found = first.0 | first.1;
        found &= self.version.get(&build.workspace.version)?;
        for (target, package) in others {
            if found.is_empty() {
                return None;
            }
            found = (&found & *package) | (&found & *target);
        }
        Some(found)
    }

    /// Of the suitable workspaces in `found`, the one with the most keys of the build; of several, the most recent.
    fn most_overlapping(
        &self,
        build: &BuildKeys,
        found: &RoaringBitmap,
        is_suitable: impl Fn(&u32) -> bool,
    ) -> Option<u32> {
        let keys: Vec<&RoaringBitmap> =
            build.workspace.prefixes.iter().filter_map(|key| self.prefix.get(key)).collect();
        let shared = |number: &u32| keys.iter().filter(|set| set.contains(*number)).count();
        let most = PAIRS_MAX / keys.len().max(1) + 1;
        found.iter().rev().take(most).filter(is_suitable).max_by_key(|number| (shared(number), *number))
    }

    /// Renumbers all workspaces, because a number has only 32 bits.
    fn renumber(&mut self) {
        let mut all: Vec<(u32, Idle<W>)> = std::mem::take(self).by_number.into_iter().collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        for (_, idle) in all {
            self.insert(idle.id, idle.keys);
        }
    }
}

/// The workspaces that are not assigned yet.
struct Left<W> {
    /// Numbers of those that are.
    excluded: RoaringBitmap,
    /// The sample, from the one that is assigned first.
    sample: VecDeque<W>,
}

fn remove_number(sets: &mut HashMap<WarmKey, RoaringBitmap>, key: WarmKey, number: u32) {
    if let Some(set) = sets.get_mut(&key) {
        set.remove(number);
        if set.is_empty() {
            sets.remove(&key);
        }
    }
}
