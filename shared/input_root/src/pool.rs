//! Trees of earlier actions, found to be as they were set up and kept for those to come: whole ones, and parts of
//! them, by the digest of the directory. Taking one is one rename.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use model::BlobDigest;

use crate::made::Made;

/// Places of one digest that are looked at before one of them is taken.
const LOOK_AT: usize = 16;

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolLimits {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) idle: Duration,
}

/// The trees that are kept.
#[derive(Debug)]
pub(crate) struct Pool {
    folder: PathBuf,
    limits: PoolLimits,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By number; the lower, the longer ago was it used.
    trees: BTreeMap<u64, Kept>,
    places: HashMap<BlobDigest, Vec<Place>>,
    /// Of all of `places`, those that are none any more included.
    placed: usize,
    entries: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Kept {
    made: Made,
    since: Instant,
    entries: u64,
    bytes: u64,
}

/// Where a directory is: in which tree, and the positions that lead to it.
#[derive(Debug, Clone)]
struct Place {
    tree: u64,
    steps: Box<[u32]>,
}

/// What is kept, in figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolUse {
    /// Trees, some with parts gone.
    pub trees: usize,
    /// Files, directories and symlinks in them.
    pub entries: u64,
    /// Bytes of their files, most of them shared with the store.
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

    /// Takes a directory with this digest out of what is kept, and says where it is. It may be gone from there when
    /// its tree was thrown away meanwhile.
    pub(crate) fn take(&self, digest: &BlobDigest) -> Option<(PathBuf, Made)> {
        let mut inner = self.lock();
        let place = inner.choose(digest)?;
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

    /// Keeps a tree that lies in its folder already. Returns the folders of those that make room for it.
    pub(crate) fn put(&self, tree: u64, made: Made) -> Vec<PathBuf> {
        let mut inner = self.lock();
        let (entries, bytes) = (made.plan.entries, made.plan.bytes);
        inner.register(tree, &made);
        inner.entries += entries;
        inner.bytes += bytes;
        inner.trees.insert(tree, Kept { made, since: Instant::now(), entries, bytes });
        let gone = inner.make_room(self.limits);
        inner.forget_stale();
        drop(inner);
        gone.into_iter().map(|tree| self.folder(tree)).collect()
    }

    /// Gives up everything. Returns the folders.
    pub(crate) fn clear(&self) -> Vec<PathBuf> {
        let gone = std::mem::take(&mut *self.lock()).trees;
        gone.into_keys().map(|tree| self.folder(tree)).collect()
    }

    pub(crate) fn in_use(&self) -> PoolUse {
        let inner = self.lock();
        PoolUse { trees: inner.trees.len(), entries: inner.entries, bytes: inner.bytes }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The place whose loss costs least: a tree of its own, else a part of what is not whole any more, else any.
    fn choose(&mut self, digest: &BlobDigest) -> Option<Place> {
        let places = self.places.get_mut(digest)?;
        let mut best: Option<(u8, usize)> = None;
        let mut looked_at = 0;
        let mut at = places.len();
        while at > 0 && looked_at < LOOK_AT {
            at -= 1;
            let Some(place) = places.get(at) else { break };
            let cost = self.trees.get(&place.tree).and_then(|kept| cost(&kept.made, place));
            match cost {
                None => {
                    places.swap_remove(at);
                    self.placed -= 1;
                    // The one that came in its place was looked at already, and is found there again.
                    if let Some((_, chosen)) = &mut best
                        && *chosen == places.len()
                    {
                        *chosen = at;
                    }
                }
                Some(cost) => {
                    looked_at += 1;
                    if best.is_none_or(|(least, _)| cost < least) {
                        best = Some((cost, at));
                    }
                    if cost == 0 {
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

    fn remove(&mut self, tree: u64) -> Option<Kept> {
        let kept = self.trees.remove(&tree)?;
        self.entries -= kept.entries;
        self.bytes -= kept.bytes;
        Some(kept)
    }

    fn register(&mut self, tree: u64, made: &Made) {
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
                let place = Place { tree, steps: steps.into() };
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

    /// Places that are none any more are found when somebody looks; this is for digests that nobody asks for.
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

/// What taking it breaks; None: it is not there any more.
fn cost(made: &Made, place: &Place) -> Option<u8> {
    made.part(&place.steps)?;
    match place.steps.split_last() {
        None => Some(0),
        Some((_, parent)) => Some(if made.part(parent).is_some() { 2 } else { 1 }),
    }
}

/// Where the parts of the work folder are.
#[derive(Debug)]
pub(crate) struct Folders {
    pub(crate) kept: PathBuf,
    pub(crate) spare: PathBuf,
    pub(crate) trash: PathBuf,
}

impl Folders {
    pub(crate) fn of(work: &Path) -> Arc<Self> {
        Arc::new(Self { kept: work.join("kept"), spare: work.join("spare"), trash: work.join("trash") })
    }
}
