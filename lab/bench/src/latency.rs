//! Latency from create to process start, one build at a time on an idle farm.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{
    error::BenchError,
    farm::{BenchFarm, no_op},
    statistics::Percentiles,
};

/// Measures the latency of `samples` builds.
pub(crate) async fn measure(farm: &BenchFarm, samples: usize) -> Result<Percentiles, BenchError> {
    let mut found = Vec::with_capacity(samples);
    // The first builds warm up caches.
    for number in 0..samples + 20 {
        let asked = micros();
        let record = farm.build(&no_op(), |_| ()).await?;
        let started = record.result().and_then(|result| result.command_started_at_us);
        let started = started.ok_or_else(|| BenchError::plain("a build did not start"))?;
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
