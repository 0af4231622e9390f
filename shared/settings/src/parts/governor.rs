use std::time::Duration;

use model::Occupancy;

use crate::Settings;

/// Settings of the service `governor`.
#[derive(Debug, Clone)]
pub struct GovernorSettings {
    pub tick: Duration,
    pub capacity: Occupancy,
}

impl Settings {
    pub fn governor(&self) -> GovernorSettings {
        GovernorSettings {
            tick: Duration::from_millis(self.governor_tick_ms),
            capacity: self.capacity.clone(),
        }
    }
}
