//! Groups that share executors: wait of a small group beside a large one, and fairness of their shares.

use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use serde::Serialize;

use crate::{
    error::BenchError,
    farm::{BenchFarm, Executor},
    progress::say,
    report::line,
    shell::{Ran, Shell, mean, until},
};

const MUCH: usize = 10_000;
const LITTLE: usize = 100;
const SLOTS: &str = "8";
const SECONDS: f64 = 0.1;
const LIMIT: Duration = Duration::from_secs(120);
const INSTANCES: &str = "red=red blue=blue green=green amber=amber *=default";
/// Groups, seconds and number of their actions: each group has enough work for about a minute.
const GROUPS: [(&str, f64, usize); 4] =
    [("red", 0.05, 1200), ("amber", 0.05, 1200), ("blue", 0.5, 120), ("green", 0.5, 120)];

/// Figures of the scenario.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sharing {
    /// Mean wait in seconds of an action of the small group on an empty farm.
    alone_wait_seconds: f64,
    /// Mean wait in seconds beside a group with a hundred times as many actions.
    beside_wait_seconds: f64,
    /// Ratio of that wait, minus the length of one action, to the wait on an empty farm.
    wait_ratio: f64,
    /// Jain's index of the resource-seconds of groups whose actions differ by a factor of ten in length; 1 is fair.
    jain: f64,
}

/// Runs the scenario `fairness`.
pub(crate) async fn measure() -> Result<Sharing, BenchError> {
    say("running a group of 100 actions beside one of 10,000");
    let (alone, beside) = waits().await?;
    say("sharing between groups with actions of different length");
    let jain = evenness().await?;
    Ok(Sharing {
        alone_wait_seconds: alone,
        beside_wait_seconds: beside,
        wait_ratio: (beside - SECONDS) / alone,
        jain,
    })
}

async fn start() -> Result<(BenchFarm, Executor, Shell), BenchError> {
    let farm = BenchFarm::of_actions(&[("FOREBAY_INSTANCES", INSTANCES)]).await?;
    let executor = farm.executor("one", &[("FOREBAY_EXECUTOR_SLOTS", SLOTS)]).await?;
    let shell = Shell::new(&farm, 8).await?;
    Ok((farm, executor, shell))
}

async fn waits() -> Result<(f64, f64), BenchError> {
    let (farm, _executor, shell) = start().await?;
    let script = format!("sleep {SECONDS}");
    let little = async || {
        let actions = shell.upload_many(&script, &[], LITTLE).await?;
        let ran = shell.execute_all("blue", &actions, &AtomicUsize::new(0)).await?;
        Ok::<_, BenchError>(mean(ran.iter().map(Ran::waited)))
    };
    let alone = little().await?;
    let (much, accepted) = (shell.upload_many(&script, &[], MUCH).await?, AtomicUsize::new(0));
    let beside = async {
        until("much waits", LIMIT, || accepted.load(Ordering::Relaxed) == MUCH).await?;
        little().await
    };
    // The rest of the large group is not needed.
    let beside = tokio::select! {
        beside = beside => beside?,
        ended = shell.execute_all("red", &much, &accepted) => {
            ended?;
            return Err(BenchError::plain("the large group ended before the small one"));
        }
    };
    farm.stop().await;
    Ok((alone, beside))
}

async fn evenness() -> Result<f64, BenchError> {
    let (farm, _executor, shell) = start().await?;
    let accepted = AtomicUsize::new(0);
    let runs = GROUPS.map(|(group, seconds, count)| {
        let (shell, accepted) = (&shell, &accepted);
        async move {
            let actions = shell.upload_many(&format!("sleep {seconds}"), &[], count).await?;
            shell.execute_all(group, &actions, accepted).await
        }
    });
    let all = futures::future::try_join_all(runs).await?;
    farm.stop().await;
    // Count only the time in which every group had waiting actions.
    let starts = |ran: &Vec<Ran>| {
        let least = ran.iter().map(|one| one.started).fold(f64::MAX, f64::min);
        (least, ran.iter().map(|one| one.started).fold(0.0, f64::max))
    };
    let spans: Vec<(f64, f64)> = all.iter().map(starts).collect();
    let from = spans.iter().map(|span| span.0).fold(0.0, f64::max);
    let to = spans.iter().map(|span| span.1).fold(f64::MAX, f64::min);
    let used: Vec<f64> =
        all.iter().map(|ran| ran.iter().map(|one| one.within(from, to)).sum::<f64>()).collect();
    let (sum, squares) = (used.iter().sum::<f64>(), used.iter().map(|one| one * one).sum::<f64>());
    Ok(sum * sum / (used.len() as f64 * squares))
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, "100 actions alone, mean wait", Some(self.alone_wait_seconds), "s")?;
        line(f, "100 actions beside 10,000, mean wait", Some(self.beside_wait_seconds), "s")?;
        line(f, "ratio to alone, minus an action's length", Some(self.wait_ratio), "")?;
        line(f, "Jain's index, lengths of 1 to 10", Some(self.jain), "")
    }
}
