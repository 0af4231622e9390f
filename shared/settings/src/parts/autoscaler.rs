use std::{collections::BTreeMap, time::Duration};

use model::ScaledPool;

use crate::{PoolScaling, Settings};

/// Settings of the service `autoscaler`.
#[derive(Debug, Clone)]
pub struct AutoscalerSettings {
    pub pools: BTreeMap<ScaledPool, PoolScaling>,
    pub tick: Duration,
    pub workspaces: u16,
    pub executor_slots: u16,
}

impl Settings {
    pub fn autoscaler(&self) -> AutoscalerSettings {
        AutoscalerSettings {
            pools: self.autoscale.clone(),
            tick: Duration::from_millis(self.autoscale_tick_ms),
            workspaces: self.workspace_count(),
            executor_slots: self.executor_slot_count(),
        }
    }
}
