//! Completeness of `Tree` messages, which list the contents of output directories.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::StreamExt as _;
use model::BlobDigest;

use crate::{Cas, CasError, known::Moment, output_tree_memo::TreeRefs, wire::TreeScanner};

/// Maximum number of files of a `Tree` that is remembered.
const REMEMBERED_FILES: usize = 300_000;

impl Cas {
    /// Whether the store has all files that the `Tree` message `tree` references; if so, they
    /// are kept for another `keep`.
    pub(crate) async fn is_tree_complete(&self, tree: &BlobDigest) -> Result<bool, CasError> {
        let known = &self.inner.known;
        let now = known.now();
        if let Some(refs) = self.inner.trees.get(tree) {
            if refs.whole.load(Ordering::Acquire).checked_sub(1).is_some_and(|at| known.is_fresh(at, now)) {
                return Ok(true);
            }
            let whole = self.contains(tree).await? && self.missing(&refs.files).await?.is_empty();
            if whole {
                refs.whole.store(now + 1, Ordering::Release);
            }
            return Ok(whole);
        }
        self.read_tree(tree, now).await
    }

    async fn read_tree(&self, tree: &BlobDigest, now: Moment) -> Result<bool, CasError> {
        let Some(mut pieces) = self.read(tree, 0, None).await? else { return Ok(false) };
        let malformed = |why| CasError::Malformed { digest: *tree, wanted: "Tree", why };
        let mut scanner = TreeScanner::new(tree.function);
        let (mut all, mut files) = (Vec::new(), Vec::new());
        let mut remember = true;
        while let Some(piece) = pieces.next().await {
            scanner.take(&piece?, &mut files).map_err(malformed)?;
            if !self.missing(&files).await?.is_empty() {
                return Ok(false);
            }
            remember &= all.len() + files.len() <= REMEMBERED_FILES;
            if remember {
                all.append(&mut files);
            }
            files.clear();
        }
        scanner.finish().map_err(malformed)?;
        if remember {
            let refs = TreeRefs { files: all.into_boxed_slice(), whole: AtomicU64::new(now + 1) };
            self.inner.trees.insert(*tree, Arc::new(refs));
        }
        Ok(true)
    }
}
