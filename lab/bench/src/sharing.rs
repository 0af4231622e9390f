//! Groups that share executors: wait of a small group beside a large one, and fairness of their shares.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use command_line::failure::say;

use crate::{
    error::BenchError,
    farm::{BenchFarm, Executor},
    figures::Figures,
    shell::{Ran, Shell, until},
    statistics::mean,
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

/// Runs the scenario `fairness`.
pub(crate) async fn measure() -> Result<Figures, BenchError> {
    say("running a group of 100 actions beside one of 10,000");
    let (alone, beside) = waits().await?;
    say("sharing between groups with actions of different length");
    let jain = evenness().await?;
    let ratio = (beside - SECONDS) / alone;
    let mut figures = Figures::default();
    figures.figure("alone_wait_seconds", "100 actions alone, mean wait", alone, "s");
    figures.figure("beside_wait_seconds", "100 actions beside 10,000, mean wait", beside, "s");
    figures.figure("wait_ratio", "ratio to alone, minus an action's length", ratio, "");
    figures.figure("jain", "Jain's index, lengths of 1 to 10", jain, "");
    Ok(figures)
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

/// Jain's index of the resource-seconds of groups whose actions differ by a factor of ten in length; 1 is fair.
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
