//! Builds as a load, and maximum rates of create and get.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use model::BuildKey;

use crate::{error::BenchError, farm::BenchFarm, rounds::Load};

/// Number of concurrent calls.
const IN_FLIGHT: usize = 256;
/// Number of builds kept queued while others run.
const DEPTH: u64 = 1000;
const LOOK: Duration = Duration::from_millis(20);

/// Rate of acknowledged creates per second, over `builds` builds.
pub(crate) async fn creates(farm: &BenchFarm, builds: u64) -> Result<f64, BenchError> {
    let begun = Instant::now();
    fill(farm, builds).await?;
    Ok(builds as f64 / begun.elapsed().as_secs_f64())
}

/// Queues this many builds.
pub(crate) async fn fill(farm: &BenchFarm, builds: u64) -> Result<(), BenchError> {
    futures::stream::iter(0..builds)
        .map(|_| farm.create())
        .buffer_unordered(IN_FLIGHT)
        .try_for_each(|_| async { Ok(()) })
        .await
}

/// Rate of gets per second, over `reads` reads of one hundred builds.
pub(crate) async fn gets(farm: &BenchFarm, reads: u64) -> Result<f64, BenchError> {
    let mut keys = Vec::new();
    for _ in 0..100 {
        keys.push(BuildKey { group: farm.group.clone(), id: farm.create().await? });
    }
    let begun = Instant::now();
    futures::stream::iter(keys.iter().cycle().take(usize::try_from(reads).unwrap_or(usize::MAX)))
        .map(|key| farm.client.get(key))
        .buffer_unordered(IN_FLIGHT)
        .try_for_each(|_| async { Ok(()) })
        .await
        .map_err(|error| BenchError::new("get failed", &error))?;
    Ok(reads as f64 / begun.elapsed().as_secs_f64())
}

/// Builds of `/bin/true` that run while others are created.
pub(crate) struct BuildLoad<'a> {
    pub(crate) farm: &'a BenchFarm,
}

impl Load for BuildLoad<'_> {
    type Batch = u64;

    async fn prepare(&self, items: u64) -> Result<u64, BenchError> {
        Ok(items)
    }

    async fn run(&self, items: u64) -> Result<(), BenchError> {
        let mut uncreated = items;
        let mut unfinished = 0;
        loop {
            let missing = DEPTH.saturating_sub(unfinished).min(uncreated);
            if missing >= DEPTH.min(uncreated) / 10 {
                fill(self.farm, missing).await?;
                uncreated -= missing;
            }
            if uncreated == 0 {
                return self.farm.wait_for(0).await;
            }
            tokio::time::sleep(LOOK).await;
            unfinished = self.farm.unfinished().await?;
        }
    }
}
