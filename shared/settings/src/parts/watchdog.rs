use std::{path::PathBuf, time::Duration};

use credentials::Server;

use crate::Settings;

/// Settings of the watchdog of `forebay up`.
#[derive(Debug, Clone)]
pub struct WatchdogSettings {
    pub nats: Server,
    pub data: PathBuf,
    pub orphan_patience: Duration,
    pub drain: Duration,
}

impl Settings {
    pub fn watchdog(&self) -> WatchdogSettings {
        WatchdogSettings {
            nats: self.nats("supervisor"),
            data: self.data.clone(),
            orphan_patience: Duration::from_secs(self.orphan_seconds),
            drain: Duration::from_secs(self.drain_seconds),
        }
    }
}
