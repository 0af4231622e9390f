//! Cache of decoded `Tree` messages.

use std::sync::{Arc, atomic::AtomicU64};

use model::BlobDigest;
use quick_cache::{Weighter, sync::Cache};

use crate::memo::memo;

/// The files that a `Tree` message references.
#[derive(Debug)]
pub(crate) struct TreeRefs {
    pub(crate) files: Box<[BlobDigest]>,
    pub(crate) whole: AtomicU64,
}

#[derive(Debug, Clone)]
pub(crate) struct RefsWeight;

impl Weighter<BlobDigest, Arc<TreeRefs>> for RefsWeight {
    fn weight(&self, _: &BlobDigest, tree: &Arc<TreeRefs>) -> u64 {
        128 + 48 * tree.files.len() as u64
    }
}

/// Cache of decoded `Tree` messages.
#[derive(Debug)]
pub(crate) struct TreeRefsMemo(Cache<BlobDigest, Arc<TreeRefs>, RefsWeight>);

impl TreeRefsMemo {
    pub(crate) fn new(bytes: u64) -> Self {
        Self(memo(bytes, RefsWeight))
    }

    pub(crate) fn get(&self, tree: &BlobDigest) -> Option<Arc<TreeRefs>> {
        self.0.get(tree)
    }

    pub(crate) fn insert(&self, tree: BlobDigest, refs: Arc<TreeRefs>) {
        self.0.insert(tree, refs);
    }
}
