//! Small records that are not blobs: results of actions, and chunk lists.

use crate::{Cas, CasError, layout::Entry, local::record_of};

/// Maximum size in bytes of a record.
pub(crate) const RECORD_BYTES_MAX: u64 = 64 << 20;

impl Cas {
    /// Stores a small record that is not a blob: first in the object store, then in the local tier.
    pub(crate) async fn put_record(&self, entry: Entry, content: &[u8]) -> Result<(), CasError> {
        // A farm accepts only blobs and action results.
        let through = self.objects().is_some();
        if self.local().refuses(content.len() as u64) && !through {
            return self.local().noted(Err(CasError::Full));
        }
        let record = record_of(content);
        if let Some(objects) = self.objects() {
            objects.put(&entry, record.clone().into()).await?;
        }
        match self.run_blocking(move |local| local.write_record(&entry, &record)).await {
            Err(CasError::Full) if through => Ok(()),
            outcome => outcome,
        }
    }

    /// Copies a record from the object store to the local tier. Returns whether there is one.
    pub(crate) async fn fetch_record(&self, entry: &Entry) -> Result<bool, CasError> {
        let Some(objects) = self.objects() else { return Ok(false) };
        let Some(record) = objects.get_whole(entry, RECORD_BYTES_MAX).await? else { return Ok(false) };
        let entry = *entry;
        self.run_blocking(move |local| local.write_record(&entry, &record)).await?;
        Ok(true)
    }
}
