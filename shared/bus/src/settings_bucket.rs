//! What services of one farm tell each other about its set-up.

use bytes::Bytes;

use crate::{Bus, BusError, stream};

/// A key of the settings bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKey {
    /// Where blobs are kept: a URL.
    Store,
}

impl SettingKey {
    fn subject(self) -> &'static str {
        match self {
            Self::Store => "$KV.FOREBAY_SETTINGS.store",
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
}
