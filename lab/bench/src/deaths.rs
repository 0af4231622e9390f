//! Delay of an action if its executor is killed or stopped.

use std::{
    sync::atomic::AtomicUsize,
    time::{Duration, Instant},
};

use command_line::failure::say;
use nix::sys::signal::Signal;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    shell::{Shell, until},
    statistics::median_and_worst,
};

const LEASE_SECONDS: u64 = 5;
const ROUNDS: usize = 7;
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the scenario `deaths`.
pub(crate) async fn measure() -> Result<Figures, BenchError> {
    say("killing and stopping executors during an action");
    let mut figures = Figures::default();
    figures.field("lease_seconds", LEASE_SECONDS);
    for (what, signal) in [("killed", Signal::SIGKILL), ("stopped", Signal::SIGSTOP)] {
        // From the signal to the start of the action on another executor.
        let (median, worst) = median_and_worst(&mut rounds(signal).await?);
        let name = format!("{what} executor, lease {LEASE_SECONDS} s, to the next start");
        figures.figure(&format!("{what}_seconds"), &name, median, "s");
        figures.figure(&format!("{what}_worst_seconds"), "the same, worst", worst, "s");
    }
    Ok(figures)
}

async fn rounds(signal: Signal) -> Result<Vec<f64>, BenchError> {
    let seconds = LEASE_SECONDS.to_string();
    let lease = [("FOREBAY_LEASE_TTL_SECONDS", seconds.as_str())];
    let farm = BenchFarm::of_actions(&lease).await?;
    let shell = Shell::new(&farm, 1).await?;
    let mut found = Vec::with_capacity(ROUNDS);
    for number in 0..ROUNDS {
        // Unique names, so that no executor reuses the folder of another.
        let names = [format!("{number}-one"), format!("{number}-two")];
        let executors = [farm.executor(&names[0], &lease).await?, farm.executor(&names[1], &lease).await?];
        let file = format!("runs-{number}");
        let mark = shell.marks().join(&file);
        // The first run never ends, the second ends immediately. A run claims to be the first before
        // it reports its start.
        let script = format!(
            "mkdir {0}.first 2> /dev/null; first=$?; echo $PWD >> {0}; while [ $first = 0 ]; do sleep 0.05; done",
            mark.display()
        );
        let action = shell.upload(&script, &[]).await?;
        let accepted = AtomicUsize::new(0);
        let lose = async {
            until("it runs", LIMIT, || shell.lines(&file).len() == 1).await?;
            let first = shell.lines(&file);
            let holder = executors.iter().find(|one| first.iter().any(|place| one.has(place)));
            let begun = Instant::now();
            holder.ok_or_else(|| BenchError::plain("no executor runs the action"))?.signal(signal);
            until("it runs again", LIMIT, || shell.lines(&file).len() == 2).await?;
            Ok(begun.elapsed().as_secs_f64())
        };
        let (_, took) = tokio::try_join!(shell.execute_as("", &action, &accepted), lose)?;
        found.push(took);
        for executor in executors {
            executor.end(Signal::SIGKILL).await;
        }
    }
    farm.stop().await;
    Ok(found)
}
