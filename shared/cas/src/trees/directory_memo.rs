//! Cache of decoded directories.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use model::BlobDigest;
use quick_cache::{Weighter, sync::Cache};
use reapi::directory::AbsoluteTargets;

use crate::{known::Moment, memo::memo};

/// The form that directories must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// In canonical form, with relative symlinks only.
    Strict,
    /// In canonical form, with any symlinks.
    Absolute,
    /// Any form that can be decoded.
    Any,
}

impl From<AbsoluteTargets> for Rule {
    fn from(targets: AbsoluteTargets) -> Self {
        match targets {
            AbsoluteTargets::Refused => Self::Strict,
            AbsoluteTargets::Allowed => Self::Absolute,
        }
    }
}

/// A decoded directory and its state.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) directories: Arc<[BlobDigest]>,
    pub(crate) files: Box<[BlobDigest]>,
    /// The violation of the rule `Strict`, and of the rule `Absolute`.
    pub(crate) faults: [Option<String>; 2],
    /// When everything below it was last seen to be present, for each rule, plus one: 0 means never.
    pub(crate) whole: [AtomicU64; 3],
    /// Its height in directories; valid once it was seen whole.
    pub(crate) height: AtomicU64,
}

impl Node {
    pub(crate) fn fault(&self, rule: Rule) -> Option<&String> {
        let [strict, absolute] = &self.faults;
        match rule {
            Rule::Strict => strict.as_ref(),
            Rule::Absolute => absolute.as_ref(),
            Rule::Any => None,
        }
    }

    pub(crate) fn whole_at(&self, rule: Rule) -> Option<Moment> {
        let [strict, absolute, any] = &self.whole;
        let at = match rule {
            Rule::Strict => strict,
            Rule::Absolute => absolute,
            Rule::Any => any,
        };
        at.load(Ordering::Acquire).checked_sub(1)
    }

    /// A directory that satisfies a rule satisfies all weaker rules.
    pub(crate) fn set_whole(&self, rule: Rule, at: Moment, height: u64) {
        self.height.store(height, Ordering::Relaxed);
        let [strict, absolute, any] = &self.whole;
        let (satisfied, count) = match rule {
            Rule::Strict => ([strict, absolute, any], 3),
            Rule::Absolute => ([absolute, any, any], 2),
            Rule::Any => ([any, any, any], 1),
        };
        for whole in satisfied.into_iter().take(count) {
            whole.fetch_max(at + 1, Ordering::Release);
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct DirectoryWeight;

impl Weighter<BlobDigest, Arc<Node>> for DirectoryWeight {
    fn weight(&self, _: &BlobDigest, node: &Arc<Node>) -> u64 {
        256 + 48 * (node.directories.len() + node.files.len()) as u64
    }
}

/// Cache of decoded directories, with the time when each was last whole.
#[derive(Debug)]
pub(crate) struct DirectoryMemo(Cache<BlobDigest, Arc<Node>, DirectoryWeight>);

impl DirectoryMemo {
    pub(crate) fn new(bytes: u64) -> Self {
        Self(memo(bytes, DirectoryWeight))
    }

    pub(crate) fn get(&self, directory: &BlobDigest) -> Option<Arc<Node>> {
        self.0.get(directory)
    }

    pub(crate) fn insert(&self, directory: BlobDigest, node: Arc<Node>) {
        self.0.insert(directory, node);
    }
}
