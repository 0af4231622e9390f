//! Cache of decoded action results.

use std::sync::{Arc, atomic::AtomicU64};

use model::BlobDigest;
use quick_cache::{Weighter, sync::Cache};
use reapi::execution::ActionResult;

use crate::{local::Stamp, memo::memo};

/// A decoded result and the blobs that it references.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) stamp: Stamp,
    pub(crate) result: Arc<ActionResult>,
    pub(crate) blobs: Box<[BlobDigest]>,
    pub(crate) trees: Box<[BlobDigest]>,
    pub(crate) roots: Box<[BlobDigest]>,
    pub(crate) bytes: u64,
    /// When its file was last touched, plus one: 0 means never.
    pub(crate) touched: AtomicU64,
}

#[derive(Debug, Clone)]
pub(crate) struct ParsedWeight;

impl Weighter<BlobDigest, Arc<Parsed>> for ParsedWeight {
    fn weight(&self, _: &BlobDigest, parsed: &Arc<Parsed>) -> u64 {
        512 + 3 * parsed.bytes + 48 * parsed.blobs.len() as u64
    }
}

/// Cache of decoded results.
#[derive(Debug)]
pub(crate) struct ActionMemo(Cache<BlobDigest, Arc<Parsed>, ParsedWeight>);

impl ActionMemo {
    pub(crate) fn new(bytes: u64) -> Self {
        Self(memo(bytes, ParsedWeight))
    }

    pub(crate) fn get(&self, action: &BlobDigest) -> Option<Arc<Parsed>> {
        self.0.get(action)
    }

    pub(crate) fn insert(&self, action: BlobDigest, parsed: Arc<Parsed>) {
        self.0.insert(action, parsed);
    }
}
