//! Maximum rates of create, get and finish.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use model::BuildKey;

use crate::{error::BenchError, farm::BenchFarm};

/// Number of concurrent calls.
const IN_FLIGHT: usize = 256;
/// Number of builds kept queued while finishes are measured.
const DEPTH: u64 = 1000;

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

/// Rate of finished builds per second over `window`, while new builds keep the queue filled.
pub(crate) async fn finishes(farm: &BenchFarm, window: Duration) -> Result<f64, BenchError> {
    fill(farm, DEPTH).await?;
    let mut created = DEPTH;
    let warm = Instant::now() + Duration::from_secs(2);
    let mut begun: Option<(Instant, u64)> = None;
    loop {
        let unfinished = farm.unfinished().await?;
        let finished = created.saturating_sub(unfinished);
        match begun {
            None if Instant::now() >= warm => begun = Some((Instant::now(), finished)),
            Some((since, before)) if since.elapsed() >= window => {
                let rate = (finished - before) as f64 / since.elapsed().as_secs_f64();
                farm.wait_for(0).await?;
                return Ok(rate);
            }
            None | Some(_) => {}
        }
        let missing = DEPTH.saturating_sub(unfinished);
        if missing < DEPTH / 10 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        fill(farm, missing).await?;
        created += missing;
    }
}
