use std::{path::PathBuf, time::Duration};

use crate::{Settings, units};

/// Settings of the service `archive`.
#[derive(Debug, Clone)]
pub struct ArchiveSettings {
    /// Database: a URL, or a path relative to `data`.
    pub url: String,
    pub data: PathBuf,
    /// How long builds and actions are kept.
    pub retention: Duration,
    /// Size in bytes above which the oldest builds are removed; 0: no limit.
    pub size_max: u64,
}

impl Settings {
    pub fn archive(&self) -> ArchiveSettings {
        ArchiveSettings {
            url: self.archive_url.clone(),
            data: self.data.clone(),
            retention: units::days(self.archive_days),
            size_max: self.archive_bytes_max,
        }
    }
}
