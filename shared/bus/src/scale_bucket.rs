//! The bucket of plans: one key a pool, how many processes it should have.

use std::time::Duration;

use futures::StreamExt as _;
use model::{ScalePlan, ScaledPool, Sequence};
use tracing::warn;

use crate::{Bus, BusError, Encoding, Stored, encode, stream, transition::Write};

const PLANS: &str = "$KV.FOREBAY_SCALE.";
const LIVE: &str = "forebay.scale.>";

/// Told of every plan. May lose one with the connection: read again when that came back.
#[derive(Debug)]
pub struct ScalePlans(async_nats::Subscriber);

impl ScalePlans {
    /// The next plan; `None` when the connection is gone for good.
    pub async fn next(&mut self) -> Option<ScalePlan> {
        loop {
            // What is not as the store repeats it was published by somebody else, who decides nothing here.
            let Some((stored, _)) = Stored::from_live(self.0.next().await?) else { continue };
            if let Ok(plan) = stored.read() {
                return Some(plan);
            }
        }
    }
}

impl Bus {
    /// The last plan for `pool`, and its position; none at 0 when there never was one, none at a position when what stands
    /// there cannot be read: that must not stop who makes the next.
    pub async fn scale_plan(&self, pool: &ScaledPool) -> Result<(Sequence, Option<ScalePlan>), BusError> {
        let Some(stored) = self.last_stored(stream::SCALE, &format!("{PLANS}{pool}")).await? else {
            return Ok((Sequence(0), None));
        };
        let plan = stored.read().inspect_err(|error| {
            warn!(%pool, %error, "the last plan is taken for none");
        });
        Ok((stored.sequence, plan.ok()))
    }

    /// Writes a plan if the last one for its pool is still that at `expected`; says where, or that another came first.
    pub async fn write_scale_plan(
        &self,
        plan: &ScalePlan,
        expected: Sequence,
        patience: Duration,
    ) -> Result<Option<Sequence>, BusError> {
        let payload = encode(Encoding::Json, plan);
        let write = Write::new(stream::SCALE, format!("{PLANS}{}", plan.pool), expected, payload);
        Ok(self.compare_and_set(&write, patience).await?.ok())
    }

    /// The last plans for all pools, by pool; from any replica. What cannot be read is left out.
    pub async fn scale_plans(&self) -> Result<Vec<ScalePlan>, BusError> {
        let found = self.last_of_many(stream::SCALE, &[format!("{PLANS}>")]).await?;
        let mut plans: Vec<ScalePlan> = found.iter().filter_map(|stored| stored.read().ok()).collect();
        plans.sort_by(|a, b| a.pool.cmp(&b.pool));
        Ok(plans)
    }

    /// Tells of every plan from now on.
    pub async fn scale_changes(&self) -> Result<ScalePlans, BusError> {
        let subscribed = self.client.subscribe(LIVE).await;
        Ok(ScalePlans(subscribed.map_err(BusError::failed("subscribing to plans".to_owned()))?))
    }
}
