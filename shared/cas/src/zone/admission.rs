//! Whether a zone may store a blob: not more than its limit, unless it has the blob already.

use std::{fs, path::PathBuf};

use model::{BlobDigest, DigestFunction, Zone, ZoneLimit, ZoneUse};

use crate::{Cas, CasError, empty_blob::is_empty, local::LookUp};

impl Cas {
    /// The zone of this handle and its limit, if it has one.
    fn limited(&self) -> Option<(&Zone, ZoneLimit)> {
        let view = self.view()?;
        Some((view.zone(), view.limit()?))
    }

    /// Whether the zone of this handle may store all blobs of these sizes; then no blob needs to be looked up.
    pub(crate) fn admits_all(&self, sizes: impl IntoIterator<Item = u64>) -> bool {
        let Some((zone, limit)) = self.limited() else { return true };
        !self.local().refusal().refuses_zone(zone) && sizes.into_iter().all(|size| fits(limit, size))
    }

    /// Fails if the zone of this handle may not store a blob.
    pub(crate) async fn admit(&self, blob: &BlobDigest) -> Result<(), CasError> {
        let Some((zone, limit)) = self.limited() else { return Ok(()) };
        if !fits(limit, blob.size) {
            return Err(CasError::AboveZoneLimit { digest: *blob, zone: zone.clone(), max: limit.bytes_max });
        }
        if is_empty(blob) || !self.local().refusal().refuses_zone(zone) {
            return Ok(());
        }
        if self.unmarked(zone, &[*blob], LookUp::Relying).await?.is_empty() {
            return Ok(());
        }
        Err(CasError::ZoneFull { zone: zone.clone() })
    }

    /// Fails if the zone of this handle may not store one of these files. A file that cannot be read fails later, when
    /// it is to be stored.
    pub(crate) async fn admit_files(
        &self,
        function: DigestFunction,
        paths: &[PathBuf],
    ) -> Result<(), CasError> {
        if self.limited().is_none() {
            return Ok(());
        }
        let measured = paths.to_vec();
        let sizes = self.run_blocking(move |_| {
            let size = |path: &PathBuf| fs::symlink_metadata(path).map_or(0, |meta| meta.len());
            Ok(measured.iter().map(size).collect::<Vec<u64>>())
        });
        if self.admits_all(sizes.await?) {
            return Ok(());
        }
        for path in paths {
            let (local_path, max) = (path.clone(), self.config().blob_bytes_max);
            let hashed = self.run_blocking(move |local| local.digest_of(function, &local_path, max)).await;
            if let Ok(digest) = hashed {
                self.admit(&digest).await?;
            }
        }
        Ok(())
    }
}

fn fits(limit: ZoneLimit, size: u64) -> bool {
    limit.bytes_max == 0 || ZoneUse::of_blob(size).bytes <= limit.bytes_max
}
