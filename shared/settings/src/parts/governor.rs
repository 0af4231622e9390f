use std::{collections::BTreeMap, time::Duration};

use model::{Occupancy, PoolName, ScaledPool};

use crate::Settings;

/// Settings of the service `governor`.
#[derive(Debug, Clone)]
pub struct GovernorSettings {
    pub tick: Duration,
    pub capacity: Occupancy,
    /// Maximum number of executors of each pool that is scaled.
    pub scaled_executors: BTreeMap<PoolName, u16>,
}

impl Settings {
    pub fn governor(&self) -> GovernorSettings {
        let scaled = self.autoscale.iter().filter_map(|(pool, scaling)| match pool {
            ScaledPool::Workers => None,
            ScaledPool::Executors(pool) => Some((pool.clone(), scaling.max)),
        });
        GovernorSettings {
            tick: Duration::from_millis(self.governor_tick_ms),
            capacity: self.capacity.clone(),
            scaled_executors: scaled.collect(),
        }
    }
}
