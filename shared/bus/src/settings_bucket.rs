//! Settings that the services of one farm share.

use std::time::Duration;

use bytes::Bytes;
use model::{Pool, PoolName, Sequence};

use crate::{Bus, BusError, Encoding, decode, encode, stream, transition::Write};

/// A key of the settings bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKey {
    /// URL of the blob store. Read from farms older than [`model::FarmRecord`]; no longer written.
    Store,
    /// Position in the stream of executions after which every unfinished execution has its last record.
    ActionsFloor,
}

const POOLS: &str = "$KV.FOREBAY_SETTINGS.pool.";
/// Time for which an uncertain announcement is retried.
const ANNOUNCE_PATIENCE: Duration = Duration::from_secs(30);

impl SettingKey {
    fn subject(self) -> &'static str {
        match self {
            Self::Store => "$KV.FOREBAY_SETTINGS.store",
            Self::ActionsFloor => "$KV.FOREBAY_SETTINGS.actions-floor",
        }
    }
}

impl Bus {
    /// Reads the shared setting `key`; `None` if it is not set.
    pub async fn setting(&self, key: SettingKey) -> Result<Option<String>, BusError> {
        let last = self.last_stored(stream::SETTINGS, key.subject()).await?;
        Ok(last.and_then(|stored| String::from_utf8(stored.payload.to_vec()).ok()))
    }

    pub async fn set_setting(&self, key: SettingKey, value: &str) -> Result<(), BusError> {
        let payload = Bytes::copy_from_slice(value.as_bytes());
        let written = self.publish_once(key.subject(), async_nats::HeaderMap::new(), payload).await;
        written.map(drop).map_err(BusError::failed(format!("setting {}", key.subject())))
    }

    /// Registers a pool, so that actions that it can run wait for its executors. The properties of the latest
    /// announcement and the largest capacity ever announced apply. Returns the merged pool.
    pub async fn announce_pool(&self, pool: &Pool) -> Result<Pool, BusError> {
        let subject = format!("{POOLS}{}", pool.name);
        let mut last = self.last_stored(stream::SETTINGS, &subject).await?;
        loop {
            let known: Option<Pool> =
                last.as_ref().and_then(|stored| decode(Encoding::Json, &stored.payload).ok());
            let capacity = known.as_ref().map(|known| pool.capacity.max(&known.capacity));
            let merged = Pool { capacity: capacity.unwrap_or_else(|| pool.capacity.clone()), ..pool.clone() };
            if known.as_ref() == Some(&merged) {
                return Ok(merged);
            }
            let expected = last.as_ref().map_or(Sequence(0), |stored| stored.sequence);
            let payload = encode(Encoding::Json, &merged);
            let write = Write::new(stream::SETTINGS, subject.clone(), expected, payload);
            match self.compare_and_set(&write, ANNOUNCE_PATIENCE).await? {
                Ok(_) => return Ok(merged),
                Err(found) => last = found,
            }
        }
    }

    /// Reads a pool; `None` if it is not registered.
    pub async fn pool(&self, name: &PoolName) -> Result<Option<Pool>, BusError> {
        let last = self.last_stored(stream::SETTINGS, &format!("{POOLS}{name}")).await?;
        Ok(last.and_then(|stored| decode(Encoding::Json, &stored.payload).ok()))
    }

    /// Reads all registered pools from any replica, sorted by name.
    pub async fn pools(&self) -> Result<Vec<Pool>, BusError> {
        let found = self.last_of_many(stream::SETTINGS, &[format!("{POOLS}*")]).await?;
        let mut pools: Vec<Pool> =
            found.iter().filter_map(|stored| decode(Encoding::Json, &stored.payload).ok()).collect();
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(pools)
    }
}
