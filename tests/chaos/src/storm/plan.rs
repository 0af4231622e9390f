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
    /// most of them submitted in so many bursts,
    pub bursts: u64,
    /// spread over this time.
    pub submit_span: Duration,
    /// Ticks of 50 ms that a build takes, at least and at most.
    pub ticks: (u64, u64),
    /// Milliseconds between two kills, at least and at most.
    pub pause_ms: (u64, u64),
    /// Killing ends by then, however far the builds are.
    pub storm_limit: Duration,
    /// After the storm everything ends within this.
    pub settle_limit: Duration,
    /// nats-servers: one, or a cluster of three.
    pub nodes: usize,
    /// Workspaces of each worker.
    pub workspaces: u16,
    /// A lease's life.
    pub lease: Duration,
    /// How often each kind of fault comes.
    pub rounds: usize,
    /// How often the disk of the bus fills and empties.
    pub full_disks: usize,
}

impl Plan {
    /// As the environment says: `FOREBAY_CHAOS=long`, `FOREBAY_CHAOS_MINUTES=NUMBER` of the long form,
    /// `FOREBAY_CHAOS_SEED=NUMBER`, `FOREBAY_CHAOS_NODES=3`.
    pub fn from_env() -> Self {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let seed = number("FOREBAY_CHAOS_SEED").unwrap_or_else(|| now_us() % 1_000_000);
        let long = std::env::var("FOREBAY_CHAOS").is_ok_and(|form| form == "long");
        let minutes = number("FOREBAY_CHAOS_MINUTES").unwrap_or(4).clamp(1, 60);
        let plan = if long { Self::long(seed, minutes) } else { Self::short(seed) };
        let nodes = number("FOREBAY_CHAOS_NODES").and_then(|count| usize::try_from(count).ok());
        Self { nodes: nodes.unwrap_or(plan.nodes), ..plan }
    }

    /// For every day.
    pub fn short(seed: u64) -> Self {
        Self {
            seed,
            builds: 300,
            bursts: 4,
            submit_span: Duration::from_secs(24),
            ticks: (1, 10),
            pause_ms: (200, 700),
            storm_limit: Duration::from_secs(50),
            settle_limit: Duration::from_secs(60),
            nodes: 1,
            workspaces: 3,
            lease: Duration::from_secs(2),
            rounds: 1,
            full_disks: 1,
        }
    }

    /// For the night: more and longer builds, so that there is always something to lose.
    pub fn long(seed: u64, minutes: u64) -> Self {
        let rounds = usize::try_from(minutes).unwrap_or(1);
        Self {
            builds: 225 * rounds,
            bursts: 3 * minutes,
            submit_span: Duration::from_secs(60 * minutes),
            ticks: (1, 38),
            pause_ms: (300, 1500),
            storm_limit: Duration::from_secs(60 * minutes + 90),
            rounds,
            full_disks: 3,
            ..Self::short(seed)
        }
    }
}
