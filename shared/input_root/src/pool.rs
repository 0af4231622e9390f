//! Trees of earlier actions that are still as they were set up, kept for later actions: whole ones, and parts of
//! them, by the digest of the directory. Taking one costs one rename.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use invariant::impossible;
use model::BlobDigest;
use parking_lot::Mutex;

use crate::prepared_dir::PreparedDir;

/// Maximum number of places of one digest that are examined before one is chosen.
const LOOK_AT: usize = 16;

/// Costs of taking a directory out of the pool, from [`cost`]: it is a tree, a part of a tree that is no longer
/// whole, or a part of a tree that is whole until then.
const WHOLE_TREE: u8 = 0;
const PART: u8 = 1;
const PART_OF_WHOLE: u8 = 2;

/// Limits of the pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolLimits {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) idle: Duration,
}

/// The kept trees, with an index of their directories.
#[derive(Debug)]
pub(crate) struct Pool {
    folder: PathBuf,
    limits: PoolLimits,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Trees by number; a lower number was used longer ago.
    trees: BTreeMap<u64, KeptTree>,
    places: HashMap<BlobDigest, Vec<DirLocation>>,
    /// Number of all entries of `places`, including stale ones.
    placed: usize,
    entries: u64,
    bytes: u64,
}

#[derive(Debug)]
struct KeptTree {
    made: PreparedDir,
    since: Instant,
    entries: u64,
    bytes: u64,
}

/// The location of a directory: its tree, and the positions that lead to it.
#[derive(Debug, Clone)]
struct DirLocation {
    tree: u64,
    steps: Box<[u32]>,
}

/// Number and size of the kept trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolUse {
    /// Number of trees; some have lost parts.
    pub trees: usize,
    /// Number of files, directories and symlinks in them.
    pub entries: u64,
    /// Bytes of their files, most of which are shared with the store.
    pub bytes: u64,
}

impl Pool {
    pub(crate) fn new(folder: PathBuf, limits: PoolLimits) -> Self {
        Self { folder, limits, inner: Mutex::default() }
    }

    /// The folder of a tree.
    pub(crate) fn folder(&self, tree: u64) -> PathBuf {
        self.folder.join(tree.to_string())
    }

    /// Takes a whole tree with this digest out of the pool and returns its folder, in which it stays: from now on it
    /// belongs to the caller.
    pub(crate) fn take_tree(&self, digest: &BlobDigest) -> Option<(PathBuf, PreparedDir)> {
        let mut inner = self.inner.lock();
        let place = inner.choose(digest, WHOLE_TREE)?;
        let kept = inner.remove(place.tree)?;
        Some((self.folder(place.tree), kept.made))
    }

    /// Takes a directory with this digest out of the pool and returns its path. It may be gone from there if its tree
    /// was removed in between.
    pub(crate) fn take(&self, digest: &BlobDigest) -> Option<(PathBuf, PreparedDir)> {
        let mut inner = self.inner.lock();
        let place = inner.choose(digest, PART_OF_WHOLE)?;
        if place.steps.is_empty() {
            let kept = inner.remove(place.tree)?;
            return Some((self.folder(place.tree), kept.made));
        }
        let kept = inner.trees.get_mut(&place.tree)?;
        let path = kept.made.path(&place.steps)?;
        let part = kept.made.take(&place.steps)?;
        let (entries, bytes) = (part.plan.entries.min(kept.entries), part.plan.bytes.min(kept.bytes));
        kept.entries -= entries;
        kept.bytes -= bytes;
        inner.entries -= entries;
        inner.bytes -= bytes;
        drop(inner);
        Some((PathBuf::from(format!("{}{path}", self.folder(place.tree).display())), part))
    }

    /// Adds a tree that is already in its folder. Returns the folders of the trees evicted for it.
    pub(crate) fn put(&self, tree: u64, made: PreparedDir) -> Vec<PathBuf> {
        let mut inner = self.inner.lock();
        let (entries, bytes) = (made.plan.entries, made.plan.bytes);
        inner.register(tree, &made);
        inner.entries += entries;
        inner.bytes += bytes;
        inner.trees.insert(tree, KeptTree { made, since: Instant::now(), entries, bytes });
        let gone = inner.make_room(self.limits);
        inner.forget_stale();
        drop(inner);
        gone.into_iter().map(|tree| self.folder(tree)).collect()
    }

    /// Removes everything from the pool. Returns the folders.
    pub(crate) fn clear(&self) -> Vec<PathBuf> {
        let gone = std::mem::take(&mut *self.inner.lock()).trees;
        gone.into_keys().map(|tree| self.folder(tree)).collect()
    }

    pub(crate) fn in_use(&self) -> PoolUse {
        let inner = self.inner.lock();
        PoolUse { trees: inner.trees.len(), entries: inner.entries, bytes: inner.bytes }
    }
}

impl Inner {
    /// Chooses the place whose loss costs least, and at most `most`.
    fn choose(&mut self, digest: &BlobDigest, most: u8) -> Option<DirLocation> {
        let places = self.places.get_mut(digest)?;
        let mut best: Option<(u8, usize)> = None;
        let mut looked_at = 0;
        let mut at = places.len();
        while at > 0 && looked_at < LOOK_AT {
            at -= 1;
            let Some(place) = places.get(at) else {
                impossible!("place {at} of a directory is not in the list");
                break;
            };
            let cost = self.trees.get(&place.tree).and_then(|kept| cost(&kept.made, place));
            match cost {
                None => {
                    places.swap_remove(at);
                    self.placed -= 1;
                    // The place that replaced it in the list was examined before, and is found there again.
                    if let Some((_, chosen)) = &mut best
                        && *chosen == places.len()
                    {
                        *chosen = at;
                    }
                }
                Some(cost) => {
                    looked_at += 1;
                    if cost <= most && best.is_none_or(|(least, _)| cost < least) {
                        best = Some((cost, at));
                    }
                    if cost == WHOLE_TREE {
                        break;
                    }
                }
            }
        }
        let chosen = best.map(|(_, at)| places.swap_remove(at));
        self.placed -= usize::from(chosen.is_some());
        if places.is_empty() {
            self.places.remove(digest);
        }
        chosen
    }

    fn remove(&mut self, tree: u64) -> Option<KeptTree> {
        let kept = self.trees.remove(&tree)?;
        self.entries -= kept.entries;
        self.bytes -= kept.bytes;
        Some(kept)
    }

    fn register(&mut self, tree: u64, made: &PreparedDir) {
        let mut stack = vec![(made, Vec::new())];
        while let Some((made, steps)) = stack.pop() {
            for (step, child) in (0_u32..).zip(&made.dirs) {
                if let Some(child) = child {
                    let mut steps: Vec<u32> = steps.clone();
                    steps.push(step);
                    stack.push((child, steps));
                }
            }
            if made.whole {
                let place = DirLocation { tree, steps: steps.into() };
                self.places.entry(made.plan.digest).or_default().push(place);
                self.placed += 1;
            }
        }
    }

    fn make_room(&mut self, limits: PoolLimits) -> Vec<u64> {
        let mut gone = Vec::new();
        while let Some((tree, oldest)) = self.trees.first_key_value() {
            let full = self.entries > limits.entries || self.bytes > limits.bytes;
            if !full && oldest.since.elapsed() <= limits.idle {
                break;
            }
            let tree = *tree;
            self.remove(tree);
            gone.push(tree);
        }
        gone
    }

    /// Stale places are normally found on access; this removes those of digests that are never requested.
    fn forget_stale(&mut self) {
        let useful = usize::try_from(self.entries).unwrap_or(usize::MAX);
        if self.placed <= useful.saturating_mul(2).saturating_add(4096) {
            return;
        }
        let trees = &self.trees;
        self.places.retain(|_, places| {
            places
                .retain(|place| trees.get(&place.tree).is_some_and(|kept| cost(&kept.made, place).is_some()));
            !places.is_empty()
        });
        self.placed = self.places.values().map(Vec::len).sum();
    }
}

/// Returns the cost of taking the place; `None` if it no longer exists.
fn cost(made: &PreparedDir, place: &DirLocation) -> Option<u8> {
    made.part(&place.steps)?;
    match place.steps.split_last() {
        None => Some(WHOLE_TREE),
        Some((_, parent)) => Some(if made.part(parent).is_some() { PART_OF_WHOLE } else { PART }),
    }
}

/// Paths of the subfolders of the work folder.
#[derive(Debug)]
pub(crate) struct Folders {
    pub(crate) kept: PathBuf,
    pub(crate) spare: PathBuf,
    pub(crate) trash: PathBuf,
    /// Exists only while the clock of the file system is examined.
    pub(crate) clock: PathBuf,
}

impl Folders {
    pub(crate) fn of(work: &Path) -> Arc<Self> {
        let [kept, spare, trash, clock] = ["kept", "spare", "trash", "clock"].map(|name| work.join(name));
        Arc::new(Self { kept, spare, trash, clock })
    }
}
