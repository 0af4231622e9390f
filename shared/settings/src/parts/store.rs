use std::{path::PathBuf, time::Duration};

use model::ZoneLimits;

use crate::Settings;

/// Settings of the data folder and of the store of blobs and action results.
#[derive(Debug, Clone)]
pub struct StoreSettings {
    pub data: PathBuf,
    pub url: String,
    pub retention: Duration,
    pub bytes_max: u64,
    pub keep: Duration,
    pub keep_min: Duration,
    pub memory_bytes: u64,
    pub blob_bytes_max: u64,
    pub fsync: bool,
    pub disk_left_percent: u8,
    pub zones: String,
    pub zone_limits: ZoneLimits,
}

impl Settings {
    pub fn store(&self) -> StoreSettings {
        StoreSettings {
            data: self.data.clone(),
            url: self.cas_url.clone(),
            retention: self.objects_retention(),
            bytes_max: self.cas_bytes_max,
            keep: Duration::from_secs(self.cas_keep_seconds),
            keep_min: Duration::from_secs(self.cas_keep_min_seconds),
            memory_bytes: self.cas_memory_bytes,
            blob_bytes_max: self.cas_blob_bytes_max,
            fsync: self.cas_fsync,
            disk_left_percent: self.disk_left_percent,
            zones: self.zones.clone(),
            zone_limits: self.zone_limits.clone(),
        }
    }
}
