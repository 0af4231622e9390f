//! The bucket of scale plans: one key for each pool, with its target size.

use std::time::Duration;

use futures::StreamExt as _;
use model::{ScalePlan, ScaledPool, Sequence};
use tracing::warn;

use crate::{Bus, BusError, Encoding, Stored, encode, stream, transition::Write};

const PLANS: &str = "$KV.FOREBAY_SCALE.";
const LIVE: &str = "forebay.scale.>";

/// Yields each scale plan. A connection loss may lose one: read the plans again after a reconnection.
#[derive(Debug)]
pub struct ScalePlans(async_nats::Subscriber);

impl ScalePlans {
    /// The next plan; `None` when the connection is closed for good.
    pub async fn next(&mut self) -> Option<ScalePlan> {
        loop {
            // A message that the server did not republish from the bucket comes from another publisher; ignore it.
            let Some((stored, _)) = Stored::from_live(self.0.next().await?) else { continue };
            if let Ok(plan) = stored.read() {
                return Some(plan);
            }
        }
    }
}

impl Bus {
    /// The last plan for `pool` and its position. `(0, None)` if there is none; `(position, None)` if it cannot be
    /// read, so that an unreadable plan does not block its replacement.
    pub async fn scale_plan(&self, pool: &ScaledPool) -> Result<(Sequence, Option<ScalePlan>), BusError> {
        let Some(stored) = self.last_stored(stream::SCALE, &format!("{PLANS}{pool}")).await? else {
            return Ok((Sequence(0), None));
        };
        let plan = stored.read().inspect_err(|error| {
            warn!(%pool, %error, "ignoring the unreadable last plan");
        });
        Ok((stored.sequence, plan.ok()))
    }

    /// Writes a plan if the last one for its pool is still at `expected`; returns its position, or `None` if
    /// another write came first.
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

    /// Reads the last plans of all pools from any replica, sorted by pool. Unreadable plans are omitted.
    pub async fn scale_plans(&self) -> Result<Vec<ScalePlan>, BusError> {
        let found = self.last_of_many(stream::SCALE, &[format!("{PLANS}>")]).await?;
        let mut plans: Vec<ScalePlan> = found.iter().filter_map(|stored| stored.read().ok()).collect();
        plans.sort_by(|a, b| a.pool.cmp(&b.pool));
        Ok(plans)
    }

    /// Subscribes to all plans from now on.
    pub async fn scale_changes(&self) -> Result<ScalePlans, BusError> {
        let subscribed = self.client.subscribe(LIVE).await;
        Ok(ScalePlans(subscribed.map_err(BusError::failed("subscribing to plans".to_owned()))?))
    }
}
