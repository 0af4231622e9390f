//! The farm record: identifies the farm that this bus belongs to; written by compare-and-set.

use std::time::Duration;

use model::{FarmRecord, Sequence};

use crate::{Bus, BusError, Encoding, SettingKey, encode, stream, transition::Write};

const FARM: &str = "$KV.FOREBAY_SETTINGS.farm";

impl Bus {
    /// The farm record and its position; position 0 if no service with a store has started yet.
    pub async fn farm_record(&self) -> Result<(Sequence, Option<FarmRecord>), BusError> {
        match self.last_stored(stream::SETTINGS, FARM).await? {
            Some(stored) => Ok((stored.sequence, Some(stored.read()?))),
            None => Ok((Sequence(0), None)),
        }
    }

    /// Writes the record if the last one is still at `expected`; returns whether it was written.
    pub async fn write_farm_record(
        &self,
        record: &FarmRecord,
        expected: Sequence,
        patience: Duration,
    ) -> Result<bool, BusError> {
        let write = Write::new(stream::SETTINGS, FARM.to_owned(), expected, encode(Encoding::Json, record));
        Ok(self.compare_and_set(&write, patience).await?.is_ok())
    }

    /// URL of the store in which earlier versions kept output files, logs, jobs and models, until its blobs are moved.
    pub async fn earlier_store(&self) -> Result<Option<String>, BusError> {
        let (_, record) = self.farm_record().await?;
        match record.and_then(|record| record.store) {
            Some(store) => Ok(Some(store.url)),
            None => self.setting(SettingKey::Store).await,
        }
    }
}
