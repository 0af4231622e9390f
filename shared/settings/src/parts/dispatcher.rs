use std::{collections::BTreeMap, time::Duration};

use model::{BandOrder, Priority};

use crate::Settings;

/// Settings of the service `dispatcher`.
#[derive(Debug, Clone)]
pub struct DispatcherSettings {
    pub offer_timeout: Duration,
    pub overrun: Duration,
    pub warm_workspaces: bool,
    /// Number of idle workspaces of the farm that are left for emergencies.
    pub emergency_workspaces: usize,
    /// Number of executor types of the farm.
    pub executor_types: usize,
    band_order: BandOrder,
    band_orders: BTreeMap<Priority, BandOrder>,
}

impl DispatcherSettings {
    /// Order of a group's builds of this priority.
    pub fn band_order_of(&self, priority: Priority) -> BandOrder {
        self.band_orders.get(&priority).copied().unwrap_or(self.band_order)
    }
}

impl Settings {
    pub fn dispatcher(&self) -> DispatcherSettings {
        DispatcherSettings {
            offer_timeout: Duration::from_millis(self.offer_timeout_ms),
            overrun: Duration::from_secs(self.overrun_seconds),
            warm_workspaces: self.warm_workspaces,
            emergency_workspaces: self.emergency_workspaces,
            executor_types: self.executor_types.len(),
            band_order: self.band_order,
            band_orders: self.band_orders.clone(),
        }
    }
}
