//! Size, duration and seed of a storm.

use std::time::Duration;

use super::now_us;

/// Parameters of a storm of builds.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Total number of builds.
    pub builds: usize,
    /// Number of bursts in which most builds are submitted.
    pub bursts: u64,
    /// Period over which the submissions are spread.
    pub submit_span: Duration,
    /// Minimum and maximum number of ticks of 50 ms that a build runs.
    pub ticks: (u64, u64),
    /// Minimum and maximum number of milliseconds between two kills.
    pub pause_ms: (u64, u64),
    /// Time after which killing ends, whatever the state of the builds.
    pub storm_limit: Duration,
    /// Time limit for all builds to end after the storm.
    pub settle_limit: Duration,
    /// Number of nats-servers: one, or a cluster of three.
    pub nodes: usize,
    /// Number of workspaces of each worker.
    pub workspaces: u16,
    /// Duration of a lease.
    pub lease: Duration,
    /// Number of times that each kind of fault occurs.
    pub rounds: usize,
    /// Number of times that the disk of the bus fills and is emptied.
    pub full_disks: usize,
}

impl Plan {
    /// Reads the plan from the environment: `FOREBAY_CHAOS=long`, `FOREBAY_CHAOS_MINUTES=NUMBER` for the
    /// long form, `FOREBAY_CHAOS_SEED=NUMBER`, `FOREBAY_CHAOS_NODES=3`.
    pub fn from_env() -> Self {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let seed = number("FOREBAY_CHAOS_SEED").unwrap_or_else(|| now_us() % 1_000_000);
        let long = std::env::var("FOREBAY_CHAOS").is_ok_and(|form| form == "long");
        let minutes = number("FOREBAY_CHAOS_MINUTES").unwrap_or(4).clamp(1, 60);
        let plan = if long { Self::long(seed, minutes) } else { Self::short(seed) };
        let nodes = number("FOREBAY_CHAOS_NODES").and_then(|count| usize::try_from(count).ok());
        Self { nodes: nodes.unwrap_or(plan.nodes), ..plan }
    }

    /// Returns the plan for every test run.
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

    /// Returns the nightly plan: more and longer builds, so that each kill interrupts some.
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
