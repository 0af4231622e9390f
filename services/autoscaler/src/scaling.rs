//! Converts the settings of pools to the planner's settings.

use std::{collections::BTreeMap, time::Duration};

use model::ScaledPool;
use policy::autoscale::{InvalidPlannerSettings, PlannerSettings};
use settings::PoolScaling;

/// Settings of a pool that the planner cannot use.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("invalid setting `autoscale` of {pool}: {source}")]
pub struct InvalidScaling {
    pool: ScaledPool,
    #[source]
    source: InvalidPlannerSettings,
}

/// The planner's settings of every autoscaled pool.
pub(crate) fn all(
    pools: &BTreeMap<ScaledPool, PoolScaling>,
) -> Result<BTreeMap<ScaledPool, PlannerSettings>, InvalidScaling> {
    let checked = |(pool, scaling): (&ScaledPool, &PoolScaling)| {
        let planner = planner(scaling);
        let valid = planner.check().map_err(|source| InvalidScaling { pool: pool.clone(), source });
        valid.map(|()| (pool.clone(), planner))
    };
    pools.iter().map(checked).collect()
}

fn planner(scaling: &PoolScaling) -> PlannerSettings {
    PlannerSettings {
        target_wait: seconds(scaling.target_wait_seconds),
        min: u64::from(scaling.min),
        max: u64::from(scaling.max),
        cost_per_process_hour: scaling.cost_per_process_hour,
        budget_per_hour: scaling.budget_per_hour,
        start_up: seconds(scaling.start_up_seconds),
        scale_in_after: seconds(scaling.scale_in_after_seconds),
        cooldown: seconds(scaling.cooldown_seconds),
        scale_in_percent: u64::from(scaling.scale_in_percent),
        tolerance_percent: u64::from(scaling.tolerance_percent),
        rate_window: seconds(scaling.rate_window_seconds),
    }
}

/// Converts seconds to a duration; an invalid number becomes the maximum, which the planner rejects.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(scaling: PoolScaling) -> Result<(), InvalidScaling> {
        all(&BTreeMap::from([(ScaledPool::Workers, scaling)])).map(drop)
    }

    #[test]
    fn the_defaults_are_those_of_the_planner() {
        assert_eq!(planner(&PoolScaling::default()), PlannerSettings::default());
        assert_eq!(with(PoolScaling::default()), Ok(()));
        assert_eq!(all(&BTreeMap::new()), Ok(BTreeMap::new()));
    }

    #[test]
    fn nonsense_is_refused_with_the_name_of_the_pool() {
        for wrong in [
            PoolScaling { target_wait_seconds: f64::NAN, ..PoolScaling::default() },
            PoolScaling { cooldown_seconds: -1.0, ..PoolScaling::default() },
            PoolScaling { scale_in_percent: 0, ..PoolScaling::default() },
            PoolScaling { min: 3, max: 2, ..PoolScaling::default() },
            PoolScaling { min: 3, budget_per_hour: Some(2.0), ..PoolScaling::default() },
        ] {
            let error = with(wrong.clone()).unwrap_err().to_string();
            assert!(error.contains("`autoscale` of workers"), "{wrong:?}: {error}");
        }
    }
}
