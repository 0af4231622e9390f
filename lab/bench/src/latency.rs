//! Latency from create to process start, one build at a time on an idle farm.

use std::time::{SystemTime, UNIX_EPOCH};

use bus::EventKind;
use client::WatchBody;
use model::{BuildKey, Sequence};

use crate::{error::BenchError, farm::BenchFarm, statistics::Percentiles};

/// Measures the latency of `samples` builds.
pub(crate) async fn measure(farm: &BenchFarm, samples: usize) -> Result<Percentiles, BenchError> {
    let mut found = Vec::with_capacity(samples);
    // The first builds warm up caches.
    for number in 0..samples + 20 {
        let asked = micros();
        let id = farm.create().await?;
        let key = BuildKey { group: farm.group.clone(), id };
        let started = started_at(farm, &key).await?;
        if number >= 20 {
            found.push(started.saturating_sub(asked) as f64 / 1000.0);
        }
    }
    Ok(Percentiles::of(&mut found))
}

fn micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

async fn started_at(farm: &BenchFarm, key: &BuildKey) -> Result<u64, BenchError> {
    let failed = |error: &dyn std::error::Error| BenchError::new("watching a build", error);
    let mut watch = farm.client.watch(key, Sequence(0), &[EventKind::Lifecycle]);
    while let Some(event) = watch.next().await.map_err(|error| failed(&error))? {
        if let WatchBody::Lifecycle(record) = event.body
            && let Some(result) = record.result()
        {
            return result.command_started_at_us.ok_or_else(|| BenchError::plain("a build did not start"));
        }
    }
    Err(BenchError::plain("a build did not finish"))
}
