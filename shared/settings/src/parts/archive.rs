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
    /// Size in bytes above which the oldest builds are removed; 0: no limit.
    pub size_max: u64,
}

impl Settings {
    pub fn archive(&self) -> ArchiveSettings {
        ArchiveSettings {
            url: self.archive_url.clone(),
            data: self.data.clone(),
            retention: units::days(self.archive_days),
            retention_by_group: self
                .archive_days_by_group
                .iter()
                .map(|(group, days)| (group.clone(), units::days(*days)))
                .collect(),
            size_max: self.archive_bytes_max,
        }
    }
}
