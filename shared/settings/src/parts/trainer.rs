use std::time::Duration;

use crate::Settings;

/// Settings of the service `trainer`.
#[derive(Debug, Clone)]
pub struct TrainerSettings {
    pub training_interval: Duration,
}

impl Settings {
    pub fn trainer(&self) -> TrainerSettings {
        TrainerSettings { training_interval: Duration::from_secs(self.training_seconds) }
    }
}
