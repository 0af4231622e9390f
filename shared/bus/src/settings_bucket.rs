//! What services of one farm tell each other about its set-up.

use bytes::Bytes;
use model::Pool;

use crate::{Bus, BusError, Encoding, decode, encode, stream};

/// A key of the settings bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKey {
    /// Where blobs are kept: a URL.
    Store,
    /// Where builds find the Remote Execution API: `grpc://HOST:PORT`.
    Grpc,
    /// Behind which position of the stream of executions all that are unfinished have their last record.
    ActionsFloor,
}

const POOLS: &str = "$KV.FOREBAY_SETTINGS.pool.";

impl SettingKey {
    fn subject(self) -> &'static str {
        match self {
            Self::Store => "$KV.FOREBAY_SETTINGS.store",
            Self::Grpc => "$KV.FOREBAY_SETTINGS.grpc",
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

    /// Makes a pool known: an action that it could run waits for its executors.
    pub async fn announce_pool(&self, pool: &Pool) -> Result<(), BusError> {
        let subject = format!("{POOLS}{}", pool.name);
        let written =
            self.publish_once(&subject, async_nats::HeaderMap::new(), encode(Encoding::Json, pool)).await;
        written.map(drop).map_err(BusError::failed(format!("setting {subject}")))
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
