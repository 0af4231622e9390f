//! Eight small actions wait for one that occupies all eight slots: time from its end until all of them run.

use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime},
};

use serde::Serialize;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    progress::say,
    report::line,
    shell::{Shell, median, until},
};

const ROUNDS: usize = 20;
const SMALL: usize = 8;
const LIMIT: Duration = Duration::from_secs(30);
/// Time after which the executor has received accepted actions.
const KNOWN: Duration = Duration::from_millis(300);

/// Figures of the scenario.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Fit {
    rounds: usize,
    /// Milliseconds from the end of the large action to the start of the eighth small one: the median.
    all_start_ms: f64,
    /// The largest of these times.
    worst_ms: f64,
}

/// Runs the scenario `fit`.
pub(crate) async fn measure() -> Result<Fit, BenchError> {
    say("starting eight small actions after a large one, 20 times");
    let farm = BenchFarm::of_actions(&[]).await?;
    let _executor = farm.executor("one", &[("FOREBAY_EXECUTOR_SLOTS", "8")]).await?;
    let shell = Shell::new(&farm, 2).await?;
    let mut found = Vec::with_capacity(ROUNDS);
    for number in 0..ROUNDS {
        found.push(round(&shell, number).await? * 1000.0);
    }
    farm.stop().await;
    let all_start_ms = median(&mut found);
    Ok(Fit { rounds: ROUNDS, all_start_ms, worst_ms: found.last().copied().unwrap_or_default() })
}

/// One round. Marks are empty files; the shell creates them without starting another process, so their times are exact.
async fn round(shell: &Shell, number: usize) -> Result<f64, BenchError> {
    let prefix = format!("{}/{number}", shell.marks().display());
    let large =
        format!(": > {prefix}.begun; until [ -e {prefix}.go ]; do sleep 0.01; done; : > {prefix}.ended");
    let large = shell.upload(&large, &[("EstimatedCPU", "8")]).await?;
    let mut small = Vec::with_capacity(SMALL);
    for one in 0..SMALL {
        let script = format!(": > {prefix}.{one}; sleep 0.5");
        small.push(shell.upload(&script, &[]).await?);
    }
    let accepted = AtomicUsize::new(0);
    let begun = shell.marks().join(format!("{number}.begun"));
    let lead = async {
        until("the large action runs", LIMIT, || begun.exists()).await?;
        let waiting = shell.execute_all("", &small, &accepted);
        let go = async {
            until("the small ones wait", LIMIT, || accepted.load(Ordering::Relaxed) == SMALL).await?;
            tokio::time::sleep(KNOWN).await;
            shell.mark(&format!("{number}.go"))
        };
        tokio::try_join!(waiting, go).map(drop)
    };
    tokio::try_join!(shell.execute(&large), lead)?;
    let ended = moment(shell, &format!("{number}.ended"))?;
    let mut last = 0.0_f64;
    for one in 0..SMALL {
        last = last.max(moment(shell, &format!("{number}.{one}"))?);
    }
    Ok(last - ended)
}

/// Creation time of a mark in seconds since the Unix epoch.
fn moment(shell: &Shell, mark: &str) -> Result<f64, BenchError> {
    let path = shell.marks().join(mark);
    let made = std::fs::metadata(&path).and_then(|metadata| metadata.modified());
    let made = made.map_err(|error| BenchError::new(format!("{}", path.display()), &error))?;
    Ok(made.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64())
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("eight start after one of eight slots, {} times", self.rounds);
        line(f, &name, Some(self.all_start_ms), "ms")?;
        line(f, "eight start after one of eight slots, worst", Some(self.worst_ms), "ms")
    }
}
