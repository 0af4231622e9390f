//! Compares a long queue with a short one: two farms, measured in turn.

use std::time::Instant;

use command_line::failure::say;

use crate::{error::BenchError, farm::BenchFarm, figures::Figures, rates, statistics::median_and_worst};

/// Builds finished in each measurement.
const BATCH: u64 = 1000;
const ROUNDS: usize = 8;

/// Compares the rate with `queued` builds waiting to that with 1,000.
pub(crate) async fn compare(workspaces: u16, queued: u64) -> Result<Figures, BenchError> {
    let deep = BenchFarm::start(workspaces, &[]).await?;
    let short = BenchFarm::start(workspaces, &[]).await?;
    let empty = deep.redis_bytes().await?;
    deep.drain(true).await?;
    short.drain(true).await?;
    say(&format!("queueing {queued} builds"));
    rates::fill(&deep, queued).await?;
    // Acknowledged builds may not be in the index yet.
    while deep.unfinished().await? < queued {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let full = deep.redis_bytes().await?;
    say("finishing 1,000 builds of the long and of a short queue in turn");
    let (mut deep_rates, mut short_rates) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        deep_rates.push(finish_batch(&deep).await?);
        rates::fill(&short, BATCH).await?;
        while short.unfinished().await? < BATCH {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        short_rates.push(finish_batch(&short).await?);
    }
    deep.stop().await;
    short.stop().await;
    let ((deep_rate, _), (short_rate, _)) =
        (median_and_worst(&mut deep_rates), median_and_worst(&mut short_rates));
    let bytes = full.saturating_sub(empty) as f64 / queued as f64;
    let mut figures = Figures::default();
    figures.field("queued", queued).field("rounds", ROUNDS);
    figures.figure("finishes_per_s_deep", &format!("builds/s with {queued} queued"), deep_rate, "/s");
    figures.figure("finishes_per_s_at_1000", "builds/s with 1,000 queued", short_rate, "/s");
    figures.figure("deep_to_1000_ratio", "long to short queue", deep_rate / short_rate, "");
    figures.figure("redis_bytes_per_build", "Redis memory of a queued build", bytes, "B");
    Ok(figures)
}

/// Lets the worker finish about `BATCH` builds and returns its rate.
async fn finish_batch(farm: &BenchFarm) -> Result<f64, BenchError> {
    let before = farm.unfinished().await?;
    let begun = Instant::now();
    farm.drain(false).await?;
    farm.wait_for(before.saturating_sub(BATCH)).await?;
    let took = begun.elapsed();
    let after = farm.unfinished().await?;
    farm.drain(true).await?;
    // Wait for running builds before the other farm is measured.
    let mut last = after;
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let now = farm.unfinished().await?;
        if now == last {
            break;
        }
        last = now;
    }
    Ok((before - after) as f64 / took.as_secs_f64())
}
