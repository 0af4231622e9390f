//! Completeness of `Tree` messages, which list the contents of output directories.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::StreamExt as _;
use model::BlobDigest;

use super::{Trees, output_tree_memo::TreeRefs, wire::TreeScanner};
use crate::{Cas, CasError, known::Moment};

/// Maximum number of files of a `Tree` that is remembered.
const REMEMBERED_FILES: usize = 300_000;

impl Trees {
    /// Whether the store has all files that the `Tree` message `tree` references; if so, they
    /// are kept for another `keep`.
    pub(crate) async fn is_output_complete(&self, cas: &Cas, tree: &BlobDigest) -> Result<bool, CasError> {
        let local = cas.local();
        let now = local.now();
        if let Some(refs) = self.outputs.get(tree) {
            if refs.whole.load(Ordering::Acquire).checked_sub(1).is_some_and(|at| local.is_fresh(at, now)) {
                return Ok(true);
            }
            let whole = cas.contains(tree).await? && cas.missing(&refs.files).await?.is_empty();
            if whole {
                refs.whole.store(now + 1, Ordering::Release);
            }
            return Ok(whole);
        }
        self.read_output(cas, tree, now).await
    }

    async fn read_output(&self, cas: &Cas, tree: &BlobDigest, now: Moment) -> Result<bool, CasError> {
        let Some(mut pieces) = cas.read(tree, 0, None).await? else { return Ok(false) };
        let malformed = |why| CasError::Malformed { digest: *tree, wanted: "Tree", why };
        let mut scanner = TreeScanner::new(tree.function);
        let (mut all, mut files) = (Vec::new(), Vec::new());
        let mut remember = true;
        while let Some(piece) = pieces.next().await {
            scanner.take(&piece?, &mut files).map_err(malformed)?;
            if !cas.missing(&files).await?.is_empty() {
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
            self.outputs.insert(*tree, Arc::new(refs));
        }
        Ok(true)
    }
}
