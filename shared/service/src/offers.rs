//! What the farm can run now.

use std::{collections::BTreeSet, time::Duration};

use bus::{Bus, BusError};
use model::{ExecutorHeartbeat, PoolName, ScalePlan, ScaledPool};
use policy::actions::Offers;

/// Age from which a plan does not show that its pool is scaled: an autoscaler makes at least one each minute.
const PLAN_AGE_MAX: Duration = Duration::from_secs(300);

/// Reads the live executors and what they offer, with what the autoscaler may start.
pub async fn offers(bus: &Bus) -> Result<(Offers, Vec<ExecutorHeartbeat>), BusError> {
    let (registered, live, plans) =
        tokio::try_join!(bus.buckets().pools(), bus.leases().executors(), bus.buckets().all::<ScalePlan>())?;
    let now = bus.now();
    let scaled: BTreeSet<PoolName> = plans
        .into_iter()
        .filter(|(_, plan)| now.since(plan.at_ms) < PLAN_AGE_MAX)
        .filter_map(|(pool, _)| match pool {
            ScaledPool::Executors(name) => Some(name),
            ScaledPool::Workers => None,
        })
        .collect();
    Ok((Offers::of(&live, &registered, &scaled), live))
}
