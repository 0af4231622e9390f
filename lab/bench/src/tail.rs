//! Tail latency of actions with one slow executor among twenty, without and with hedged copies.
//!
//! Actions arrive as a Poisson process, independent of earlier ones, with a load of 30 % of all slots. Routing by
//! affinity and load is off. Executors have one slot; the slow one needs twenty times as long for each action and has
//! two slots. (Late binding already assigns few actions to a slow executor: with one slot it would get 1 of 20 x 20 x
//! 0.3 actions, less than one in a hundred, which no 99th percentile would show.)

use std::{fmt, sync::Arc, time::Duration};

use serde::Serialize;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    latency::at,
    progress::say,
    report::{Percentiles, line},
    shell::{Shell, arrivals, until},
};

const EXECUTORS: usize = 20;
const SLOTS: f64 = 21.0;
const LOAD: f64 = 0.3;
const SECONDS: f64 = 0.2;
const SLOW: &str = "slow";
/// Hedge delay: three times the length of an action.
const DELAY_MS: &str = "600";
const SPAN: Duration = Duration::from_secs(60);
/// Number of actions that run first to build up history.
const WARM_UP: usize = 100;
const SEED: u64 = 11;

/// Figures of the scenario.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Tail {
    actions: usize,
    /// Milliseconds from Execute to the answer, without copies.
    off_ms: Percentiles,
    /// Percent of these actions that the slow executor ran.
    slow_percent: f64,
    /// One copy after a fixed delay.
    delay: Hedged,
    /// One copy if an action takes longer than others of its kind.
    history: Hedged,
}

/// Figures with hedged copies.
#[derive(Debug, Clone, Serialize)]
struct Hedged {
    ms: Percentiles,
    /// Reduction of p99 in percent.
    p99_falls_percent: f64,
    /// Additional runs in percent of the actions.
    extra_runs_percent: f64,
}

/// Results of one round.
struct Round {
    ms: Percentiles,
    actions: usize,
    runs: usize,
    slow: usize,
}

/// Runs the scenario `tail`.
pub(crate) async fn measure() -> Result<Tail, BenchError> {
    say("20 executors, one of them slow, without copies");
    let off = round(&[]).await?;
    say("20 executors, one of them slow, with a copy after a delay");
    let delay = [("FOREBAY_ACTION_HEDGES", "1"), ("FOREBAY_ACTION_HEDGE_DELAY_MS", DELAY_MS)];
    let delay = round(&delay).await?;
    say("20 executors, one of them slow, with a copy by history");
    let history = [("FOREBAY_ACTION_HEDGES", "1"), ("FOREBAY_ACTION_HEDGE_BY_HISTORY", "true")];
    let history = round(&history).await?;
    let against = |round: &Round| Hedged {
        ms: round.ms,
        p99_falls_percent: 100.0 * (1.0 - round.ms.p99 / off.ms.p99),
        extra_runs_percent: 100.0 * (round.runs as f64 / round.actions as f64 - 1.0),
    };
    Ok(Tail {
        actions: off.actions,
        off_ms: off.ms,
        slow_percent: 100.0 * off.slow as f64 / off.actions as f64,
        delay: against(&delay),
        history: against(&history),
    })
}

async fn round(hedging: &[(&str, &str)]) -> Result<Round, BenchError> {
    let mut settings = vec![("FOREBAY_ACTION_AFFINITY", "false"), ("FOREBAY_ACTION_LOAD_AWARE", "false")];
    settings.extend_from_slice(hedging);
    let farm = BenchFarm::of_actions(&settings).await?;
    let mut executors = vec![farm.executor(SLOW, &[("FOREBAY_EXECUTOR_SLOTS", "2")]).await?];
    for number in 1..EXECUTORS {
        let one = [("FOREBAY_EXECUTOR_SLOTS", "1")];
        executors.push(farm.executor(&format!("fast-{number}"), &one).await?);
    }
    let shell = Arc::new(Shell::new(&farm, 4).await?);
    let folder = shell.marks().display();
    let script = format!(
        "echo $PWD >> {folder}/runs; case $PWD in */{SLOW}/*) sleep {} ;; *) sleep {SECONDS} ;; esac",
        SECONDS * 20.0
    );
    let times = arrivals(LOAD * SLOTS / SECONDS, SPAN, SEED);
    for action in shell.upload_many(&script, &[], WARM_UP).await? {
        spawned(&shell, action, Duration::from_millis(40)).await?;
    }
    settle(&shell).await?;
    let before = shell.lines("runs").len();
    let actions = shell.upload_many(&script, &[], times.len()).await?;
    let begun = tokio::time::Instant::now();
    let running: Vec<_> = actions
        .into_iter()
        .zip(times)
        .map(|(action, at)| {
            let shell = Arc::clone(&shell);
            tokio::spawn(async move {
                tokio::time::sleep_until(begun + at).await;
                shell.execute(&action).await
            })
        })
        .collect();
    let mut took = Vec::with_capacity(running.len());
    for one in running {
        let ran = one.await.map_err(|error| BenchError::new("an action of the benchmark", &error))??;
        took.push(ran.took.as_secs_f64() * 1000.0);
    }
    took.sort_by(f64::total_cmp);
    let runs = shell.lines("runs");
    let new = runs.get(before..).unwrap_or_default();
    let slow = new.iter().filter(|place| executors.first().is_some_and(|slow| slow.has(place))).count();
    farm.stop().await;
    let ms = Percentiles { p50: at(&took, 50), p99: at(&took, 99) };
    Ok(Round { ms, actions: took.len(), runs: new.len(), slow })
}

/// Starts an action and waits for `pause`, not for the end of the action.
async fn spawned(shell: &Arc<Shell>, action: model::BlobDigest, pause: Duration) -> Result<(), BenchError> {
    let shell = Arc::clone(shell);
    tokio::spawn(async move { shell.execute(&action).await.map(drop) });
    tokio::time::sleep(pause).await;
    Ok(())
}

/// Waits until all warm-up actions have ended.
async fn settle(shell: &Shell) -> Result<(), BenchError> {
    until("the warm-up has begun", SPAN, || shell.lines("runs").len() >= WARM_UP).await?;
    tokio::time::sleep(Duration::from_secs_f64(SECONDS * 21.0)).await;
    Ok(())
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let actions = self.actions;
        line(f, &format!("one slow of 20, {actions} actions, no copies, p50"), Some(self.off_ms.p50), "ms")?;
        line(f, "no copies, p99", Some(self.off_ms.p99), "ms")?;
        line(f, "of these, on the slow executor", Some(self.slow_percent), "%")?;
        for (name, hedged) in [("a delay", &self.delay), ("history", &self.history)] {
            line(f, &format!("copies by {name}, p50"), Some(hedged.ms.p50), "ms")?;
            line(f, &format!("copies by {name}, p99"), Some(hedged.ms.p99), "ms")?;
            line(f, &format!("copies by {name}, p99 falls by"), Some(hedged.p99_falls_percent), "%")?;
            line(f, &format!("copies by {name}, additional runs"), Some(hedged.extra_runs_percent), "%")?;
        }
        Ok(())
    }
}
