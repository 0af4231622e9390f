//! The simulator against the farm: builds that were recorded and replayed, and a workload that both run.

use std::{path::Path, time::Duration};

use farm::{Farm, Output, bare_command};
use futures::StreamExt as _;
use model::{BuildId, BuildRequest};
use policy::Random;
use serde_json::Value;
use tokio::time::Instant;

use crate::check::script;

/// Workspaces, one per worker.
const WORKERS: usize = 4;
/// Shortest sleep of a build in milliseconds; the longest is four times as long.
const SHORTEST_MS: u64 = 100;

/// Maximum difference of the farm's mean wait from the simulator's on an idle machine, as a share.
const WAIT_OFF_MAX: f64 = 0.1;
/// Maximum difference of the same ratio for the jobs with some requirements from that of all jobs, as a share.
const SET_OFF_MAX: f64 = 0.1;

/// Creates builds with their submission times after the first.
fn builds(count: usize) -> Vec<(Duration, BuildRequest)> {
    let mut random = Random::new(7);
    let mut unit = || (random.below(1_000_000) as f64 + 0.5) / 1_000_000.0;
    let mut at = 0.0;
    let mut all = Vec::new();
    for _ in 0..count {
        let sleeps = SHORTEST_MS as f64 * (1.0 + 3.0 * unit());
        let build = BuildRequest {
            id: Some(BuildId::generate()),
            labels: [("tenths".to_owned(), format!("{:.0}", sleeps / 100.0))].into(),
            ..script(&format!("sleep {:.3}", sleeps / 1000.0))
        };
        all.push((Duration::from_secs_f64(at), build));
        // Builds of a quarter of a second on average, for slightly less than the capacity of four workers.
        at += -unit().ln() * 0.25 / WORKERS as f64;
    }
    all
}

/// Returns the mean of a field of JSON lines.
fn mean(lines: &str, field: &str) -> f64 {
    let read = |line| serde_json::from_str::<serde_json::Value>(line).unwrap()[field].as_f64().unwrap();
    let values: Vec<f64> = lines.lines().map(read).collect();
    values.iter().sum::<f64>() / values.len() as f64
}

#[tokio::test]
async fn recorded_builds_wait_as_long_in_the_simulator_as_they_did() {
    let count = if std::env::var_os("FOREBAY_LONG").is_some() { 500 } else { 150 };
    let mut farm = Farm::builder().workspaces(1).without("gateway");
    for _ in 1..WORKERS {
        farm = farm.with("worker");
    }
    let farm = farm.start().await;
    let began = Instant::now();
    let submit = |(at, build): (Duration, BuildRequest)| {
        let farm = &farm;
        async move {
            tokio::time::sleep_until(began + at).await;
            farm.submit("g", build).await
        }
    };
    let keys: Vec<_> =
        futures::stream::iter(builds(count).into_iter().map(submit)).buffer_unordered(count).collect().await;
    for key in &keys {
        farm.wait_finished(key, Duration::from_secs(60)).await;
    }
    let recorded = farm.cli(&["sim", "record", "--group", "g"]).await;
    assert_eq!(recorded.stdout.lines().count(), count, "{}", recorded.stderr);
    let (file, jobs) = (farm.folder().join("builds.jsonl"), farm.folder().join("jobs.jsonl"));
    std::fs::write(&file, &recorded.stdout).unwrap();
    let (file, jobs) = (file.to_str().unwrap(), jobs.to_str().unwrap());
    let workers = WORKERS.to_string();
    let policy = ["--policy", "1/fcfs/-", "--per-job", jobs];
    let replayed =
        farm.cli(&[&["sim", "run", "--replay", file, "--workers", &workers][..], &policy].concat()).await;
    assert_eq!(replayed.code, 0, "{}", replayed.stderr);
    let live = mean(&recorded.stdout, "waited_ms");
    let simulated = mean(&std::fs::read_to_string(jobs).unwrap(), "wait_ms");
    println!("{count} builds waited {live:.0} ms on the farm, {simulated:.0} ms in the simulator");
    assert!((simulated / live - 1.0).abs() < 0.1, "{simulated:.0} ms instead of {live:.0} ms");
}

/// Writes the first `count` jobs of the thesis's workload `multi_type` that are not those of the GPU, which run for
/// 1000 s each, and the workers. Returns the names of both files.
async fn multi_type(folder: &Path, count: usize) -> (String, String) {
    let place = folder.to_str().unwrap();
    let dumped = bare_command(&["sim", "run", "--workload", "multi_type", "--seed", "7", "--dump", place]);
    let dumped = Output::of(dumped).await;
    assert_eq!(dumped.code, 0, "{dumped:?}");
    let all = std::fs::read_to_string(folder.join("multi_type.7.jsonl")).unwrap();
    let jobs: Vec<&str> = all.lines().filter(|line| !line.contains("gpu_ml")).take(count).collect();
    std::fs::write(folder.join("part.jsonl"), jobs.join("\n")).unwrap();
    (format!("{place}/part.jsonl"), format!("{place}/multi_type.workers.json"))
}

#[tokio::test]
async fn jobs_of_several_kinds_wait_as_long_on_executors_as_in_the_simulator() {
    let folder = tempfile::tempdir().unwrap();
    let (jobs, workers) = multi_type(folder.path(), 300).await;
    let options = ["--replay", &jobs, "--workers", &workers, "--speed", "6"];
    let mut command = bare_command(&["bench", "farm", "--json"]);
    command.args(options).env("TMPDIR", folder.path());
    let output = Output::of(command).await;
    assert_eq!(output.code, 0, "{output:?}");
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    let compared = &report["fcfs_schedulers_1"];
    println!("{compared:#}");
    let all = &compared["mean_wait_s"];
    let ratio =
        |figures: &Value, one: &str| figures[one].as_f64().unwrap() / figures["simulator"].as_f64().unwrap();
    // Other tests load the machine, which delays each start by the same time.
    if std::env::var_os("FOREBAY_LONG").is_some() {
        assert!((ratio(all, "farm") - 1.0).abs() < WAIT_OFF_MAX, "{compared:#}");
    }
    for hwgroup in ["group_common_1", "group_common_2", "group_common_1|group_common_2"] {
        let of_set = &compared["mean_wait_s_by_requirements"][format!("env=c hwgroup={hwgroup}")];
        let off = |one: &str| (ratio(of_set, one) / ratio(all, one) - 1.0).abs();
        assert!(off("farm") < SET_OFF_MAX, "{hwgroup}: {compared:#}");
        // If each job ran on one kind of worker, some jobs would wait much longer and others shorter.
        assert!(off("one_kind_each") > 2.0 * SET_OFF_MAX, "{hwgroup}: {compared:#}");
    }
    assert_eq!(compared["grants_beyond_room"], 0, "{compared:#}");
}

#[tokio::test]
async fn only_policies_without_estimates_are_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let (jobs, workers) = multi_type(folder.path(), 3).await;
    let refused = |more: &'static [&'static str]| {
        let mut command = bare_command(&["bench", "farm", "--replay", &jobs, "--workers", &workers]);
        command.args(more);
        async {
            let output = Output::of(command).await;
            assert_eq!(output.code, 2, "{output:?}");
            output.stderr
        }
    };
    assert!(refused(&["--policy", "1/spt/oracle"]).await.contains("without estimates"));
    assert!(refused(&["--speed", "0"]).await.contains("0.01"));
    assert!(refused(&["--actions", "7"]).await.contains("--actions"));
}
