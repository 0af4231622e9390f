use std::time::Duration;

use crate::Settings;

/// Settings of the service `reaper`.
#[derive(Debug, Clone)]
pub struct ReaperSettings {
    pub overrun: Duration,
    pub lease_ttl: Duration,
}

impl Settings {
    pub fn reaper(&self) -> ReaperSettings {
        ReaperSettings {
            overrun: Duration::from_secs(self.overrun_seconds),
            lease_ttl: Duration::from_secs(self.lease_ttl_seconds),
        }
    }
}
