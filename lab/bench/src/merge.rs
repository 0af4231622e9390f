//! Many clients that request the same action concurrently: number of runs, and time until all are answered if
//! the executor is stopped.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use command_line::failure::say;
use futures::FutureExt as _;
use nix::sys::signal::Signal;

use crate::{
    error::BenchError,
    farm::{BenchFarm, Executor},
    figures::Figures,
    log,
    shell::{Shell, until},
};

const CLIENTS: usize = 1000;
const CONNECTIONS: usize = 10;
const LEASE_SECONDS: u64 = 3;
const DELAY_MS: u64 = 1000;
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the scenario `merge`.
pub(crate) async fn measure() -> Result<Figures, BenchError> {
    say("requesting the same action from 1,000 clients");
    let (runs, executions, answered) = together().await?;
    say("stopping the executor of 1,000 clients, with and without hedged copies");
    // From SIGSTOP of the executor to the answer of the last client.
    let (hedged, unhedged) = (stopped("1").await?.as_secs_f64(), stopped("0").await?.as_secs_f64());
    let (delay, answered_ms) = (DELAY_MS as f64 / 1000.0, answered.as_secs_f64() * 1000.0);
    let mut figures = Figures::default();
    figures.field("clients", CLIENTS);
    figures.figure("runs", &format!("{CLIENTS} clients, the same action: runs"), runs, "");
    figures.figure("executions", "executions of it in the log", executions, "");
    figures.figure("told_ms", "end of the action to the last answer", answered_ms, "ms");
    figures.field("lease_seconds", LEASE_SECONDS).field("hedge_delay_seconds", delay);
    let name = format!("executor stopped, hedged copy after {delay} s");
    figures.figure("stopped_hedged_seconds", &name, hedged, "s");
    let name = format!("executor stopped, no copies, lease {LEASE_SECONDS} s");
    figures.figure("stopped_unhedged_seconds", &name, unhedged, "s");
    Ok(figures)
}

async fn together() -> Result<(usize, usize, Duration), BenchError> {
    let farm = BenchFarm::of_actions(&[]).await?;
    let _executors = [farm.executor("one", &[]).await?, farm.executor("two", &[]).await?];
    let shell = Shell::new(&farm, CONNECTIONS).await?;
    let folder = shell.marks().display();
    let script = format!("echo $PWD >> {folder}/runs; until [ -e {folder}/go ]; do sleep 0.02; done");
    let action = shell.upload(&script, &[]).await?;
    let (accepted, actions) = (AtomicUsize::new(0), vec![action; CLIENTS]);
    let all = async {
        let all = shell.execute_all("", &actions, &accepted).await?;
        Ok::<_, BenchError>((all.len(), Instant::now()))
    };
    let go = async {
        let waiting = || accepted.load(Ordering::Relaxed) == CLIENTS && !shell.lines("runs").is_empty();
        until("all wait", LIMIT, waiting).await?;
        shell.mark("go")?;
        Ok(Instant::now())
    };
    let ((answered, last), gone) = tokio::try_join!(all, go)?;
    let runs = shell.lines("runs").len();
    let executions = log::since(&farm, model::Sequence(0)).await?.executions;
    farm.stop().await;
    if answered != CLIENTS {
        return Err(BenchError::plain(format!("{answered} of {CLIENTS} clients were answered")));
    }
    Ok((runs, executions, last.duration_since(gone)))
}

/// Stops the executor of the first run, which never ends.
async fn stopped(hedges: &str) -> Result<Duration, BenchError> {
    let (lease, delay) = (LEASE_SECONDS.to_string(), DELAY_MS.to_string());
    let settings = [
        ("FOREBAY_LEASE_TTL_SECONDS", lease.as_str()),
        ("FOREBAY_ACTION_HEDGES", hedges),
        ("FOREBAY_ACTION_HEDGE_DELAY_MS", delay.as_str()),
    ];
    let farm = BenchFarm::of_actions(&settings).await?;
    let executors =
        [farm.executor("one", &settings[..1]).await?, farm.executor("two", &settings[..1]).await?];
    let shell = Shell::new(&farm, CONNECTIONS).await?;
    let folder = shell.marks().display();
    let script = format!(
        "mkdir {folder}/first 2> /dev/null; first=$?; echo $PWD >> {folder}/runs; while [ $first = 0 ]; do sleep 0.05; done"
    );
    let (action, accepted) = (shell.upload(&script, &[]).await?, AtomicUsize::new(0));
    let actions = vec![action; CLIENTS];
    let mut all = std::pin::pin!(shell.execute_all("", &actions, &accepted).fuse());
    let waiting = || accepted.load(Ordering::Relaxed) == CLIENTS && !shell.lines("runs").is_empty();
    // A copy that starts before all clients wait would be stopped too, or would answer them:
    // both invalidate the measurement.
    tokio::select! {
        waiting = until("all wait", LIMIT, waiting) => {
            waiting?;
        }
        ended = &mut all => return Err(BenchError::plain(format!("the action ended early: {:?}", ended.is_ok()))),
    }
    stop_holder(&executors, &shell.lines("runs"))?;
    let begun = Instant::now();
    let answered = tokio::time::timeout(LIMIT, all).await;
    let answered = answered.map_err(|_| BenchError::plain("not all clients were answered"))??.len();
    let took = begun.elapsed();
    farm.stop().await;
    if answered == CLIENTS { Ok(took) } else { Err(BenchError::plain("a client received no answer")) }
}

fn stop_holder(executors: &[Executor], runs: &[String]) -> Result<(), BenchError> {
    let first = runs.first().map(String::as_str).unwrap_or_default();
    let holder = executors.iter().find(|executor| executor.has(first));
    let holder = holder.ok_or_else(|| BenchError::plain(format!("no executor has {first}")))?;
    holder.signal(Signal::SIGSTOP);
    Ok(())
}
