//! `forebay bench guard` fails if actions cost more than its file says.

use std::{num::NonZero, path::Path};

use farm::{Output, bare_command};
use serde_json::{Value, json};

const CASE: &str = "actions_16_slots";

fn processors() -> usize {
    std::thread::available_parallelism().map_or(0, NonZero::get)
}

/// A baseline whose rates any machine reaches.
fn generous() -> Value {
    let case = json!({ "throughput_ratio": 0.000_01, "processor_ratio": 1e6, "processes": {} });
    json!({
        "commit": "test",
        "profile": if cfg!(debug_assertions) { "dev" } else { "release" },
        "processors": processors(),
        "made_by": "test",
        "cases": { CASE: case },
    })
}

async fn guard(folder: &Path, option: &str, file: &str, content: &str) -> Output {
    let file = folder.join(file);
    std::fs::write(&file, content).unwrap();
    let mut command = bare_command(&["bench", "guard", "--json", "--only", CASE, "--seconds", "0.2"]);
    command.arg(option).arg(&file).env("TMPDIR", folder);
    Output::of(command).await
}

async fn guard_rates(folder: &Path, baseline: &Value) -> Output {
    guard(folder, "--baseline", "baseline.json", &baseline.to_string()).await
}

async fn guard_counts(folder: &Path, stored_messages: f64) -> Output {
    let limits = format!("stored_messages = {stored_messages:?}\nmessages = 1e6\nredis_commands = 1e6");
    let budget = format!("[others]\nlimit = 1\n[counts.{CASE}]\n{limits}\n");
    guard(folder, "--counts", "budget.toml", &budget).await
}

#[tokio::test]
async fn the_guard_fails_if_actions_cost_more_than_its_file_says() {
    let folder = tempfile::Builder::new().permissions(open()).tempdir().unwrap();
    let output = guard_rates(folder.path(), &generous()).await;
    assert_eq!(output.code, 0, "{output:?}");
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    let figure = |name: &str| report[CASE][name].as_f64().unwrap_or_else(|| panic!("{name}: {report}"));
    assert!(figure("throughput_ratio") > 0.0 && figure("processor_ratio") > 0.0, "{report}");
    for process in ["executor", "gateway", "scheduler", "nats-server", "redis-server", "bench (the client)"] {
        let time = report[CASE]["processor_us"][process].as_f64();
        assert!(time.is_some_and(|time| time > 0.0), "{process}: {report}");
    }
    // ACTION_ACCEPTED and ACTION_FINISHED of each action, and a few heartbeats and leases.
    assert!((1.9..4.0).contains(&figure("stored_messages")), "{report}");
    assert!(figure("messages") > figure("stored_messages"), "{report}");
    assert!(figure("redis_commands") > figure("redis_scripts"), "{report}");
    assert_eq!(report["compared"], true);

    let output = guard_counts(folder.path(), 1.0).await;
    assert_eq!(output.code, 1, "{output:?}");
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    let verdict = &report[CASE]["guarded_stored_messages"];
    assert_eq!(verdict["passed"], false, "{report}");
    assert_eq!(verdict["measured"].as_array().map(Vec::len), Some(3), "it measures again: {report}");
    assert_eq!(report[CASE]["guarded_messages"]["passed"], true, "{report}");
    for part in ["actions_16_slots: stored_messages", "1.000 is the maximum", "CHANGELOG.md"] {
        assert!(output.stderr.contains(part), "{part}: {output:?}");
    }
    assert!(!output.stderr.contains(" messages ("), "{output:?}");
}

#[tokio::test]
async fn limits_that_are_missing_or_wrong_are_bad_input() {
    let folder = tempfile::tempdir().unwrap();
    let case = format!("[counts.{CASE}]\n");
    for (budget, part) in [("", "counts"), ("[counts]\n", CASE), (case.as_str(), "stored_messages")] {
        let output = guard(folder.path(), "--counts", "budget.toml", budget).await;
        assert_eq!(output.code, 2, "{output:?}");
        assert!(output.stderr.contains(part) && output.stderr.contains("budget.toml"), "{output:?}");
    }
}

#[tokio::test]
async fn the_guard_compares_only_with_figures_of_the_same_profile_and_number_of_processors() {
    let folder = tempfile::tempdir().unwrap();
    let mut baseline = generous();
    baseline["processors"] = json!(processors() + 1);
    let output = guard_rates(folder.path(), &baseline).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(serde_json::from_str::<Value>(&output.stdout).unwrap()["compared"], false);
    baseline["profile"] = json!("another");
    let output = guard_rates(folder.path(), &baseline).await;
    assert_eq!(output.code, 2, "{output:?}");
    assert!(output.stderr.contains("the profile another"), "{output:?}");
    baseline = generous();
    baseline["cases"] = json!({});
    let output = guard_rates(folder.path(), &baseline).await;
    assert_eq!(output.code, 2, "{output:?}");
    assert!(output.stderr.contains(CASE) && output.stderr.contains("make bench-baseline"), "{output:?}");
}

/// Permissions of a folder that the user of the actions can enter.
fn open() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o755)
}
