//! Time from a cancellation, or from the disconnection of the client, to the end of the action's process.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use command_line::failure::say;
use reapi::execution::ExecuteRequest;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    shell::{Shell, until},
    statistics::median_and_worst,
};

const ROUNDS: usize = 30;
const GRACE_MS: u32 = 1000;
const LIMIT: Duration = Duration::from_secs(30);

/// Runs the scenario `cancel`.
pub(crate) async fn measure() -> Result<Figures, BenchError> {
    say("cancelling actions, and disconnecting their clients");
    let grace = GRACE_MS.to_string();
    let farm = BenchFarm::of_actions(&[("FOREBAY_ACTION_WAITER_GRACE_MS", grace.as_str())]).await?;
    let _executor = farm.executor("one", &[]).await?;
    let shell = Shell::new(&farm, 1).await?;
    let (mut calls, mut answers, mut goings) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..ROUNDS {
        let (call, answer) = cancel(&shell, &format!("1000.{number:04}")).await?;
        calls.push(call);
        answers.push(answer);
    }
    for number in 0..ROUNDS / 3 {
        goings.push((leave(&shell, &format!("2000.{number:04}")).await? - f64::from(GRACE_MS)).max(0.0));
    }
    farm.stop().await;
    let (call, _) = median_and_worst(&mut calls);
    let (answer, answer_worst) = median_and_worst(&mut answers);
    let (going, going_worst) = median_and_worst(&mut goings);
    let mut figures = Figures::default();
    figures.field("rounds", ROUNDS);
    let name = format!("cancel to end of the process, {ROUNDS} times");
    figures.figure("from_call_ms", &name, call, "ms");
    figures.figure("from_answer_ms", "cancel accepted to end", answer, "ms");
    figures.figure("from_answer_worst_ms", "cancel accepted to end, worst", answer_worst, "ms");
    figures.figure("from_going_ms", "client gone to end, minus grace", going, "ms");
    figures.figure("from_going_worst_ms", "client gone to end, worst", going_worst, "ms");
    Ok(figures)
}

/// A running action: its operation, process and stream.
struct Running {
    operation: String,
    process: PathBuf,
    stream: tonic::Streaming<reapi::longrunning::Operation>,
}

/// Starts an action that sleeps for a unique number of seconds, which identifies its process.
async fn run(shell: &Shell, seconds: &str) -> Result<Running, BenchError> {
    let action = shell.upload(&format!("exec sleep {seconds}"), &[]).await?;
    let request =
        ExecuteRequest { action_digest: Some(reapi::digest::to_proto(&action)), ..ExecuteRequest::default() };
    let failed = |status: tonic::Status| BenchError::new("executing an action", &status);
    let mut stream = shell.remote()?.execution().execute(request).await.map_err(failed)?.into_inner();
    let first = stream.message().await.map_err(failed)?;
    let operation = first.map(|operation| operation.name).unwrap_or_default();
    let mut process = None;
    until("it runs", LIMIT, || {
        process = sleeping(seconds);
        process.is_some()
    })
    .await?;
    let Some(process) = process else {
        unreachable!("the process was found above");
    };
    Ok(Running { operation, process, stream })
}

/// Finds the process of `sleep` by its command line, since its process id is known only in its namespace.
fn sleeping(seconds: &str) -> Option<PathBuf> {
    let command = format!("sleep\0{seconds}\0").into_bytes();
    let processes = std::fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let is = |path: &PathBuf| std::fs::read(path.join("cmdline")).is_ok_and(|line| line == command);
    processes.into_iter().find(is).map(|path| path.join("stat"))
}

/// Waits for the end of the process, and returns the milliseconds.
async fn dead(process: &Path) -> Result<f64, BenchError> {
    // A zombie counts as ended.
    let lives = || {
        let stat = std::fs::read_to_string(process).unwrap_or_default();
        stat.rsplit_once(')')
            .is_some_and(|(_, rest)| !matches!(rest.trim_start().chars().next(), Some('Z' | 'X')))
    };
    Ok(until("the process has ended", LIMIT, || !lives()).await?.as_secs_f64() * 1000.0)
}

async fn cancel(shell: &Shell, seconds: &str) -> Result<(f64, f64), BenchError> {
    let running = run(shell, seconds).await?;
    let remote = shell.remote()?.clone();
    let begun = Instant::now();
    remote.cancel(&running.operation).await?;
    let called = begun.elapsed().as_secs_f64() * 1000.0;
    let answer = dead(&running.process).await?;
    Ok((called + answer, answer))
}

async fn leave(shell: &Shell, seconds: &str) -> Result<f64, BenchError> {
    let running = run(shell, seconds).await?;
    drop(running.stream);
    dead(&running.process).await
}
