//! Eight small actions wait for one that occupies all eight slots: time from its end until all of them run.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime},
};

use command_line::failure::say;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    shell::{Shell, until},
    statistics::median_and_worst,
};

const ROUNDS: usize = 20;
const SMALL: usize = 8;
const LIMIT: Duration = Duration::from_secs(30);
/// Time after which the executor has received accepted actions.
const KNOWN: Duration = Duration::from_millis(300);

/// Runs the scenario `fit`.
pub(crate) async fn measure() -> Result<Figures, BenchError> {
    say("starting eight small actions after a large one, 20 times");
    let farm = BenchFarm::of_actions(&[]).await?;
    let _executor = farm.executor("one", &[("FOREBAY_EXECUTOR_SLOTS", "8")]).await?;
    let shell = Shell::new(&farm, 2).await?;
    let mut found = Vec::with_capacity(ROUNDS);
    for number in 0..ROUNDS {
        found.push(round(&shell, number).await? * 1000.0);
    }
    farm.stop().await;
    // From the end of the large action to the start of the eighth small one.
    let (median, worst) = median_and_worst(&mut found);
    let name = "eight start after one of eight slots";
    let mut figures = Figures::default();
    figures.field("rounds", ROUNDS);
    figures.figure("all_start_ms", &format!("{name}, {ROUNDS} times"), median, "ms");
    figures.figure("worst_ms", &format!("{name}, worst"), worst, "ms");
    Ok(figures)
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
