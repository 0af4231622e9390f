//! `forebay bench farm` measures schedulers with executors that run nothing.

use std::{fs, path::Path, process::Stdio};

use farm::{Output, SOON, bare_command};
use serde_json::Value;

use crate::check::until;

const ACTIONS: &str = "300";

async fn bench(folder: &Path, options: &[&str]) -> Value {
    let mut command = bare_command(&["bench", "farm", "--json", "--actions", ACTIONS, "--groups", "3"]);
    command.args(options).env("TMPDIR", folder);
    let output = Output::of(command).await;
    assert_eq!(output.code, 0, "{output:?}");
    serde_json::from_str(&output.stdout).unwrap()
}

/// Checks the figures that every measurement has.
fn assert_measured(report: &Value, schedulers: usize) {
    let figure = |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("{name}: {report}"));
    assert!(figure("grants_per_s") > 0.0 && figure("redis_commands") > 0.0, "{report}");
    // ACTION_ACCEPTED and ACTION_FINISHED of each action, and leases of executors.
    assert!((1.5..6.0).contains(&figure("stored_messages")), "{report}");
    for process in ["nats-server", "redis-server", "bench (the client)"] {
        assert!(report["processor_us"][process].as_f64().is_some(), "{process}: {report}");
    }
    let is_scheduler = |name: &&String| name.starts_with("scheduler-");
    let found = report["processor_us"].as_object().unwrap().keys().filter(is_scheduler).count();
    assert_eq!(found, schedulers, "{report}");
    assert!(report["idle_processor_percent"].is_object(), "{report}");
    for fault in ["repeated_grants", "grants_beyond_room"] {
        assert_eq!(report[fault], 0, "{report}");
    }
}

#[tokio::test]
async fn light_executors_get_grants_and_their_latency_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let report = bench(folder.path(), &["--executors", "8,20", "--schedulers", "2"]).await;
    for key in ["executors_8_schedulers_2_waiting_0", "executors_20_schedulers_2_waiting_0"] {
        let case = &report[key];
        assert_measured(case, 2);
        let percentile = |name: &str| case["latency_ms"][name].as_f64().unwrap_or_default();
        assert!(percentile("p50") > 0.0 && percentile("p99") >= percentile("p50"), "{report}");
        assert!(case["messages_by_subject"]["forebay.executor.grant"].as_f64() > Some(0.0), "{report}");
    }
}

#[tokio::test]
async fn actions_wait_throughout_if_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--executors", "8", "--waiting", "50,400", "--run-ms", "1"];
    let report = bench(folder.path(), &options).await;
    for key in ["executors_8_schedulers_1_waiting_50", "executors_8_schedulers_1_waiting_400"] {
        assert_measured(&report[key], 1);
        assert!(report[key]["redis_bytes_per_waiting"].as_f64() > Some(0.0), "{report}");
    }
    assert!(
        report["executors_8_schedulers_1_waiting_400"]["to_first_ratio"].as_f64() > Some(0.0),
        "{report}"
    );
}

/// Number of processes whose arguments name the folder.
fn processes_of(folder: &Path) -> usize {
    let folder = folder.display().to_string();
    let names_it = |arguments: Vec<u8>| String::from_utf8_lossy(&arguments).contains(&folder);
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter(|entry| fs::read(entry.path().join("cmdline")).is_ok_and(names_it)).count()
}

#[tokio::test]
async fn a_farm_ends_with_its_benchmark_also_if_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = bare_command(&["bench", "farm", "--actions", "1000000", "--executors", "8"]);
    command.env("TMPDIR", folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut bench = command.kill_on_drop(true).spawn().unwrap();
    // `up`, its watchdog, nats-server and a scheduler; Redis writes other arguments over its own.
    until("the farm runs", SOON, || processes_of(folder.path()) >= 4).await;
    bench.kill().await.unwrap();
    until("the farm has ended", SOON, || processes_of(folder.path()) == 0).await;
}
