//! The simulator against the farm: builds that were recorded, and replayed.

use std::time::Duration;

use farm::Farm;
use futures::StreamExt as _;
use model::{BuildId, BuildRequest};
use policy::Random;
use tokio::time::Instant;

use crate::check::script;

/// Workspaces, one per worker.
const WORKERS: usize = 4;
/// Shortest sleep of a build in milliseconds; the longest is four times as long.
const SHORTEST_MS: u64 = 100;

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
