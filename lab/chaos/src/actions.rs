//! Actions under a storm: every accepted execution ends with exactly one result, and every client receives its own.

mod clients;
mod history;
mod killer;
mod mutate;
mod rules;
mod synthetic;

use std::{
    fmt, fs,
    os::unix::fs::PermissionsExt as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use farm::{Farm, Port};
use tokio::time::Instant;

use crate::Random;

pub use clients::Answer;
pub use history::ActionHistory;
pub use mutate::ActionMutation;
pub use rules::{ActionRule, Broken};
pub use synthetic::action_history;

/// Number of additional copies of an action, and the delay in milliseconds before they start: much
/// shorter than a lease.
const HEDGES: u16 = 2;
const HEDGE_DELAY_MS: &str = "300";

/// Parameters of a storm of actions.
#[derive(Debug, Clone)]
pub struct ActionPlan {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Total number of actions.
    pub actions: usize,
    /// Maximum number of clients that request the same action at about the same time.
    pub askers: u64,
    /// Number of requests in flight at once.
    pub in_flight: usize,
    /// Range of milliseconds between two kills.
    pub pause_ms: (u64, u64),
    /// Time limit for all actions to end after the last kill.
    pub settle_limit: Duration,
}

impl ActionPlan {
    /// Returns the short plan, or with `FOREBAY_CHAOS=long` the long one; `FOREBAY_CHAOS_SEED` repeats a run.
    pub fn from_env() -> Self {
        let seed = std::env::var("FOREBAY_CHAOS_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) ^ crate::storm::now_us());
        let long = std::env::var("FOREBAY_CHAOS").is_ok_and(|form| form == "long");
        let (actions, in_flight) = if long { (6000, 2000) } else { (400, 200) };
        let settle_limit = Duration::from_secs(90);
        Self { seed, actions, askers: 3, in_flight, pause_ms: (150, 900), settle_limit }
    }
}

/// Results of a storm of actions.
#[derive(Debug)]
pub struct ActionAftermath {
    /// Records of the stream and of the clients.
    pub history: ActionHistory,
    /// Forbidden behaviour of services that no rule covers.
    pub faults: Vec<String>,
    /// Names of killed processes with the number of kills.
    pub kills: Vec<(String, usize)>,
    /// Time from the first action to the last result.
    pub took: Duration,
}

/// Runs a farm through a storm of actions.
///
/// # Panics
/// When servers or services do not start.
pub async fn run(plan: &ActionPlan) -> (Farm, ActionAftermath) {
    let builder =
        Farm::builder().only(&[]).env("FOREBAY_SANDBOX", "none").env("FOREBAY_ACTION_ATTEMPTS", "50");
    let builder = builder.env("FOREBAY_ACTION_HEDGES", HEDGES.to_string());
    let builder = builder.env("FOREBAY_ACTION_HEDGE_DELAY_MS", HEDGE_DELAY_MS);
    let farm = builder.env("FOREBAY_EXECUTOR_SLOTS", "4").start().await;
    let outside = farm.folder().join("outside");
    fs::create_dir(&outside).expect("a folder for the files of commands");
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o777)).expect("our own folder");
    let runs = outside.join("runs");
    let mut random = Random::new(plan.seed);
    let ports = [Port::reserve(), Port::reserve()];
    let mut killer = killer::Killer::start(&farm, plan, random.clone(), &ports).await;
    let began = Instant::now();
    let done = Arc::new(AtomicBool::new(false));
    let urls = ports.iter().map(|port| format!("grpc://127.0.0.1:{}", port.number())).collect();
    let clients = async {
        let answers = clients::run(plan, &mut random, urls, &runs).await;
        done.store(true, Ordering::Relaxed);
        answers
    };
    let (answers, ()) = tokio::join!(clients, killer.storm(&done));
    let took = began.elapsed();
    killer.calm().await;
    let history = ActionHistory::read(&farm, answers, HEDGES, &runs).await;
    let (faults, kills) = killer.end();
    (farm, ActionAftermath { history, faults, kills, took })
}

impl fmt::Display for ActionAftermath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kills: Vec<String> = self.kills.iter().map(|(what, count)| format!("{count} {what}")).collect();
        write!(f, "{} in {:.1?}; {}", self.history, self.took, kills.join(", "))
    }
}
