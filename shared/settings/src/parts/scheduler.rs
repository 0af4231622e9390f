use std::time::Duration;

use model::ActionOrder;

use crate::Settings;

/// Settings of the service `scheduler`.
#[derive(Debug, Clone)]
pub struct SchedulerSettings {
    pub affinity: bool,
    pub order: ActionOrder,
    pub affinity_wait: Duration,
    pub custom_resource_patience: Duration,
    pub sizing: bool,
    pub hedges: HedgeSettings,
    pub lease_ttl: Duration,
}

/// Additional copies of slow actions.
#[derive(Debug, Clone)]
pub struct HedgeSettings {
    pub max: u16,
    pub delay: Duration,
    pub by_history: bool,
    pub factor: f64,
}

impl Settings {
    pub fn scheduler(&self) -> SchedulerSettings {
        SchedulerSettings {
            affinity: self.action_affinity,
            order: self.action_order,
            affinity_wait: Duration::from_millis(self.action_affinity_wait_ms),
            custom_resource_patience: Duration::from_secs(self.custom_resource_patience_seconds),
            sizing: self.action_sizing,
            hedges: HedgeSettings {
                max: self.action_hedges,
                delay: Duration::from_millis(self.action_hedge_delay_ms),
                by_history: self.action_hedge_by_history,
                factor: self.action_hedge_factor,
            },
            lease_ttl: Duration::from_secs(self.lease_ttl_seconds),
        }
    }
}
