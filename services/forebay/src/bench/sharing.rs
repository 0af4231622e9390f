//! Groups that share executors: what a small one waits beside a large one, and how even their shares are.

use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use serde::Serialize;

use super::{
    farm::BenchFarm,
    report::line,
    shell::{Ran, Shell, mean, until},
};
use crate::failure::{Failure, say};

const MUCH: usize = 10_000;
const LITTLE: usize = 100;
const SLOTS: &str = "8";
const SECONDS: f64 = 0.1;
const LIMIT: Duration = Duration::from_secs(120);
const INSTANCES: &str = "red=red blue=blue green=green amber=amber *=default";
/// Groups, how long their actions take, and how many they send: each could have the executor for a minute.
const GROUPS: [(&str, f64, usize); 4] =
    [("red", 0.05, 1200), ("amber", 0.05, 1200), ("blue", 0.5, 120), ("green", 0.5, 120)];

/// The figures.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Sharing {
    /// Mean seconds that an action of a small group waits on an empty farm.
    alone_wait_seconds: f64,
    /// Likewise, beside a group that sent a hundred times as many.
    beside_wait_seconds: f64,
    /// How many times that of an empty farm it is, one action's length taken off.
    wait_ratio: f64,
    /// Jain's index of what groups used whose actions differ ten times in length, in resource-seconds; 1 is even.
    jain: f64,
}

/// Measures.
pub(super) async fn measure() -> Result<Sharing, Failure> {
    say("having a group of 100 actions wait beside one of 10,000");
    let (alone, beside) = waits().await?;
    say("having groups share whose actions differ in length");
    let jain = evenness().await?;
    Ok(Sharing {
        alone_wait_seconds: alone,
        beside_wait_seconds: beside,
        wait_ratio: (beside - SECONDS) / alone,
        jain,
    })
}

async fn start() -> Result<(BenchFarm, super::farm::Executor, Shell), Failure> {
    let farm = BenchFarm::of_actions(&[("FOREBAY_INSTANCES", INSTANCES)]).await?;
    let executor = farm.executor("one", &[("FOREBAY_EXECUTOR_SLOTS", SLOTS)]).await?;
    let shell = Shell::new(&farm, 8).await?;
    Ok((farm, executor, shell))
}

async fn waits() -> Result<(f64, f64), Failure> {
    let (farm, _executor, shell) = start().await?;
    let script = format!("sleep {SECONDS}");
    let little = async || {
        let actions = shell.upload_many(&script, &[], LITTLE).await?;
        let ran = shell.execute_all("blue", &actions, &AtomicUsize::new(0)).await?;
        Ok::<_, Failure>(mean(ran.iter().map(Ran::waited)))
    };
    let alone = little().await?;
    let (much, accepted) = (shell.upload_many(&script, &[], MUCH).await?, AtomicUsize::new(0));
    let beside = async {
        until("much waits", LIMIT, || accepted.load(Ordering::Relaxed) == MUCH).await?;
        little().await
    };
    // The rest of the many is of no more interest.
    let beside = tokio::select! {
        beside = beside => beside?,
        ended = shell.execute_all("red", &much, &accepted) => {
            ended?;
            return Err(Failure::plain(1, "the large group ended before the small one"));
        }
    };
    farm.stop().await;
    Ok((alone, beside))
}

async fn evenness() -> Result<f64, Failure> {
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
    // As long as every group had something waiting.
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
        line(f, "an action's length less, to alone", Some(self.wait_ratio), "")?;
        line(f, "Jain's index, lengths of 1 to 10", Some(self.jain), "")
    }
}
