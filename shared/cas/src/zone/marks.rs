//! Looks up the marks of a zone, and makes them.

use std::collections::HashSet;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use model::{BlobDigest, Zone};

use crate::{Cas, CasError, backing::BATCH_CALLS, empty_blob::is_empty, local::LookUp};

/// Number of marks looked up or made in one blocking task.
const MARKS: usize = 2048;
/// Maximum number of marks that are made without a handover to a blocking thread.
const FEW: usize = 4;

impl Cas {
    /// Whether this handle may see a blob, if the store has it.
    pub(crate) async fn sees(&self, blob: &BlobDigest) -> Result<bool, CasError> {
        Ok(self.hidden(std::slice::from_ref(blob)).await?.is_empty())
    }

    /// Those of `blobs` that this handle must not see, whether the store has them or not.
    pub(crate) async fn hidden(&self, blobs: &[BlobDigest]) -> Result<HashSet<BlobDigest>, CasError> {
        let Some(view) = self.view() else { return Ok(HashSet::new()) };
        let Some((zones, seen)) = view.marks() else { return Ok(HashSet::new()) };
        if let Some(farm) = self.farm() {
            return Ok(farm.missing(blobs).await?.into_iter().collect());
        }
        let now = self.local().now();
        let is_cold = |blob: &&BlobDigest| !is_empty(blob) && seen.fresh(blob, self.local(), now).is_none();
        let mut hidden: Vec<BlobDigest> = blobs.iter().filter(is_cold).copied().collect();
        hidden.sort_unstable();
        hidden.dedup();
        for (number, zone) in zones.into_iter().enumerate() {
            if hidden.is_empty() {
                break;
            }
            let unmarked = self.unmarked(zone, &hidden, view.look_up(zone)).await?;
            let unmarked: HashSet<BlobDigest> = unmarked.into_iter().collect();
            let (left, marked): (Vec<_>, Vec<_>) =
                hidden.into_iter().partition(|blob| unmarked.contains(blob));
            seen.note(&marked, now, number == 0);
            hidden = left;
        }
        Ok(hidden.into_iter().collect())
    }

    /// Records that the zone of this handle has blobs, which are stored. For callers that have their content from the zone.
    pub async fn prove(&self, blobs: &[BlobDigest]) -> Result<(), CasError> {
        let Some((zones, seen)) = self.view().and_then(|view| view.marks()) else { return Ok(()) };
        // The farm behind the store has marked what it received for the zone.
        let (None, Some(own)) = (self.farm(), zones.first().copied()) else { return Ok(()) };
        let now = self.local().now();
        let has = |blob: &BlobDigest| seen.fresh(blob, self.local(), now).is_some_and(|seen| seen.is_own);
        let is_new = |blob: &&BlobDigest| !is_empty(blob) && !has(blob);
        let new: Vec<BlobDigest> = blobs.iter().filter(is_new).copied().collect();
        if new.is_empty() {
            return Ok(());
        }
        if let Some(objects) = self.objects() {
            stream::iter(new.clone())
                .map(|blob| async move { objects.put_mark(own, &blob).await })
                .buffered(BATCH_CALLS)
                .try_collect::<()>()
                .await?;
        }
        self.mark_here(own, &new).await?;
        seen.note(&new, now, true);
        Ok(())
    }

    /// The outcomes of storing `blobs`; those that were stored are proved.
    pub(crate) async fn prove_stored(
        &self,
        blobs: &[BlobDigest],
        outcomes: Vec<Result<(), CasError>>,
    ) -> Vec<Result<(), CasError>> {
        let stored = blobs.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
        let stored: Vec<BlobDigest> = stored.map(|(blob, _)| *blob).collect();
        if stored.is_empty() || self.prove(&stored).await.is_ok() {
            return outcomes;
        }
        // One by one, so that each has its own error.
        let mut proved = Vec::with_capacity(outcomes.len());
        for (blob, outcome) in blobs.iter().zip(outcomes) {
            let is_stored = outcome.is_ok();
            proved.push(if is_stored { self.prove(&[*blob]).await } else { outcome });
        }
        proved
    }

    /// Those of `blobs` of which a zone has no mark.
    pub(super) async fn unmarked(
        &self,
        zone: &Zone,
        blobs: &[BlobDigest],
        how: LookUp,
    ) -> Result<Vec<BlobDigest>, CasError> {
        let parts: Vec<Vec<BlobDigest>> = blobs.chunks(MARKS).map(<[BlobDigest]>::to_vec).collect();
        let absent: Vec<Vec<BlobDigest>> = stream::iter(parts)
            .map(|part| {
                let zone = zone.clone();
                self.run_blocking(move |local| local.unmarked(&zone, &part, how))
            })
            .buffered(4)
            .try_collect()
            .await?;
        let absent = absent.concat();
        let Some(objects) = self.objects().filter(|_| !absent.is_empty()) else { return Ok(absent) };
        let (there, absent) = objects.look_up_marks(zone, absent).await?;
        if !there.is_empty() {
            self.mark_here(zone, &there).await?;
        }
        Ok(absent)
    }

    /// Makes the files of marks.
    async fn mark_here(&self, zone: &Zone, blobs: &[BlobDigest]) -> Result<(), CasError> {
        if blobs.len() <= FEW {
            return self.local().noted(self.local().mark(zone, blobs));
        }
        let (zone, blobs) = (zone.clone(), blobs.to_vec());
        self.run_blocking(move |local| local.mark(&zone, &blobs)).await
    }
}
