//! What services of one farm tell each other about its set-up.

use std::time::Duration;

use bytes::Bytes;
use model::{Pool, PoolName, Sequence};

use crate::{Bus, BusError, Encoding, decode, encode, stream, transition::Write};

/// A key of the settings bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKey {
    /// Where blobs are kept: a URL. Read from a bus of before [`model::FarmRecord`], and not written any more.
    Store,
    /// Behind which position of the stream of executions all that are unfinished have their last record.
    ActionsFloor,
}

const POOLS: &str = "$KV.FOREBAY_SETTINGS.pool.";
/// How long a doubtful announcement is resolved.
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
    /// The shared setting `key`, when someone set it.
    pub async fn setting(&self, key: SettingKey) -> Result<Option<String>, BusError> {
        let last = self.last_stored(stream::SETTINGS, key.subject()).await?;
        Ok(last.and_then(|stored| String::from_utf8(stored.payload.to_vec()).ok()))
    }

    /// Sets the shared setting `key`.
    pub async fn set_setting(&self, key: SettingKey, value: &str) -> Result<(), BusError> {
        let payload = Bytes::copy_from_slice(value.as_bytes());
        let written = self.publish_once(key.subject(), async_nats::HeaderMap::new(), payload).await;
        written.map(drop).map_err(BusError::failed(format!("setting {}", key.subject())))
    }

    /// Makes a pool known: an action that it could run waits for its executors. The properties are those of who announced
    /// it last, the capacity is the largest that anyone announced. Returns what is known of it then.
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

    /// A pool, if it is known.
    pub async fn pool(&self, name: &PoolName) -> Result<Option<Pool>, BusError> {
        let last = self.last_stored(stream::SETTINGS, &format!("{POOLS}{name}")).await?;
        Ok(last.and_then(|stored| decode(Encoding::Json, &stored.payload).ok()))
    }

    /// The pools that are known, by name; from any replica.
    pub async fn pools(&self) -> Result<Vec<Pool>, BusError> {
        let found = self.last_of_many(stream::SETTINGS, &[format!("{POOLS}*")]).await?;
        let mut pools: Vec<Pool> =
            found.iter().filter_map(|stored| decode(Encoding::Json, &stored.payload).ok()).collect();
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(pools)
    }
}
