//! Delay of an action if its executor is killed or stopped.

use std::{
    fmt,
    sync::atomic::AtomicUsize,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde::Serialize;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    progress::say,
    report::line,
    shell::{Shell, median, until},
};

const LEASE: &str = "5";
const ROUNDS: usize = 7;
const LIMIT: Duration = Duration::from_secs(60);

/// Figures of the scenario: seconds from the signal to the start of the action on another executor.
#[expect(clippy::struct_field_names, reason = "the unit is part of a figure's name")]
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Deaths {
    lease_seconds: f64,
    killed_seconds: f64,
    killed_worst_seconds: f64,
    stopped_seconds: f64,
    stopped_worst_seconds: f64,
}

/// Runs the scenario `deaths`.
pub(crate) async fn measure() -> Result<Deaths, BenchError> {
    say("killing and stopping executors during an action");
    let mut killed = rounds(Signal::SIGKILL).await?;
    let mut stopped = rounds(Signal::SIGSTOP).await?;
    let worst = |all: &[f64]| all.last().copied().unwrap_or_default();
    let Ok(lease_seconds) = LEASE.parse() else {
        unreachable!("{LEASE} is not a number");
    };
    let (killed_seconds, stopped_seconds) = (median(&mut killed), median(&mut stopped));
    Ok(Deaths {
        lease_seconds,
        killed_seconds,
        killed_worst_seconds: worst(&killed),
        stopped_seconds,
        stopped_worst_seconds: worst(&stopped),
    })
}

async fn rounds(signal: Signal) -> Result<Vec<f64>, BenchError> {
    let lease = [("FOREBAY_LEASE_TTL_SECONDS", LEASE)];
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

impl fmt::Display for Deaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease = self.lease_seconds;
        let name = format!("killed executor, lease {lease} s, to the next start");
        line(f, &name, Some(self.killed_seconds), "s")?;
        line(f, "the same, worst", Some(self.killed_worst_seconds), "s")?;
        let name = format!("stopped executor, lease {lease} s, to the next start");
        line(f, &name, Some(self.stopped_seconds), "s")?;
        line(f, "the same, worst", Some(self.stopped_worst_seconds), "s")
    }
}
