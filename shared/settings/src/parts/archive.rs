use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use model::Group;

use crate::{Settings, units};

/// Settings of the service `archive`.
#[derive(Debug, Clone)]
pub struct ArchiveSettings {
    /// Database: a URL, or a path relative to `data`.
    pub url: String,
    pub data: PathBuf,
    /// How long builds and actions are kept.
    pub retention: Duration,
    /// The same for groups that differ.
    pub retention_by_group: BTreeMap<Group, Duration>,
    /// How long the store keeps the blobs that rows name; zero: as long as without an archive.
    pub blobs_retention: Duration,
    /// Size in bytes above which the oldest rows are removed; 0: no limit.
    pub size_max: u64,
}

impl Settings {
    pub fn archive(&self) -> ArchiveSettings {
        let longest = self.archive_days_by_group.values().copied().fold(self.archive_days, u64::max);
        ArchiveSettings {
            url: self.archive_url.clone(),
            data: self.data.clone(),
            retention: units::days(self.archive_days),
            retention_by_group: self
                .archive_days_by_group
                .iter()
                .map(|(group, days)| (group.clone(), units::days(*days)))
                .collect(),
            blobs_retention: units::days(if self.archive_keeps_blobs { longest } else { 0 }),
            size_max: self.archive_bytes_max,
        }
    }
}
