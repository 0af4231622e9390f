//! How hard, how long, and by which chance.

use std::time::Duration;

use super::now_us;

/// A storm to be.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// Builds in all,
    pub builds: usize,
    /// submitted in so many bursts,
    pub bursts: u64,
    /// spread over this time.
    pub submit_span: Duration,
    /// Ticks of 50 ms that a build takes, at least and at most.
    pub ticks: (u64, u64),
    /// Milliseconds between two kills, at least and at most.
    pub pause_ms: (u64, u64),
    /// Kills at most, however long it takes.
    pub storm_limit: Duration,
    /// After the storm everything ends within this.
    pub settle_limit: Duration,
    /// Workspaces of each worker.
    pub workspaces: u16,
    /// A lease's life.
    pub lease: Duration,
}

impl Plan {
    /// As the environment says: `FOREBAY_CHAOS=long`, `FOREBAY_CHAOS_SEED=NUMBER`.
    pub fn from_env() -> Self {
        let seed = std::env::var("FOREBAY_CHAOS_SEED").ok().and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or_else(|| now_us() % 1_000_000);
        let long = std::env::var("FOREBAY_CHAOS").is_ok_and(|form| form == "long");
        if long { Self::long(seed) } else { Self::short(seed) }
    }

    /// For every day.
    pub fn short(seed: u64) -> Self {
        Self {
            seed,
            builds: 300,
            bursts: 8,
            submit_span: Duration::from_secs(20),
            ticks: (1, 10),
            pause_ms: (500, 1500),
            storm_limit: Duration::from_secs(50),
            settle_limit: Duration::from_secs(60),
            workspaces: 4,
            lease: Duration::from_secs(2),
        }
    }

    /// For the night.
    pub fn long(seed: u64) -> Self {
        Self {
            bursts: 20,
            submit_span: Duration::from_secs(200),
            ticks: (1, 38),
            pause_ms: (400, 2000),
            storm_limit: Duration::from_secs(280),
            ..Self::short(seed)
        }
    }
}
