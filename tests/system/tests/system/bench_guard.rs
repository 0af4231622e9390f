//! `forebay bench guard` fails if actions cost more than its file says.

use std::{num::NonZero, path::Path};

use farm::{Output, bare_command};
use serde_json::{Value, json};

const CASE: &str = "actions_16_slots";

fn processors() -> usize {
    std::thread::available_parallelism().map_or(0, NonZero::get)
}

/// A file whose figures any machine reaches.
fn generous() -> Value {
    let case = json!({
        "throughput_ratio": 0.000_01,
        "processor_ratio": 1e6,
        "stored_messages": 1e6,
        "messages": 1e6,
        "redis_commands": 1e6,
        "processes": {},
    });
    json!({
        "commit": "test",
        "profile": if cfg!(debug_assertions) { "dev" } else { "release" },
        "processors": processors(),
        "made_by": "test",
        "cases": { CASE: case },
    })
}

async fn guard(folder: &Path, baseline: &Value) -> Output {
    let file = folder.join("baseline.json");
    std::fs::write(&file, baseline.to_string()).unwrap();
    let mut command = bare_command(&["bench", "guard", "--json", "--only", CASE, "--seconds", "1"]);
    command.arg("--baseline").arg(&file).env("TMPDIR", folder);
    Output::of(command).await
}

#[tokio::test]
async fn the_guard_fails_if_actions_cost_more_than_its_file_says() {
    let folder = tempfile::Builder::new().permissions(open()).tempdir().unwrap();
    let mut baseline = generous();
    let output = guard(folder.path(), &baseline).await;
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

    baseline["cases"][CASE]["stored_messages"] = json!(1.0);
    let output = guard(folder.path(), &baseline).await;
    assert_eq!(output.code, 1, "{output:?}");
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    let verdict = &report[CASE]["guarded_stored_messages"];
    assert_eq!(verdict["passed"], false, "{report}");
    assert_eq!(verdict["measured"].as_array().map(Vec::len), Some(3), "it measures again: {report}");
    assert_eq!(report[CASE]["guarded_messages"]["passed"], true, "{report}");
    for part in ["actions_16_slots: stored_messages", "1.150 is the maximum", "make bench-baseline"] {
        assert!(output.stderr.contains(part), "{part}: {output:?}");
    }
    assert!(!output.stderr.contains("throughput_ratio ("), "{output:?}");
}

#[tokio::test]
async fn the_guard_compares_only_with_figures_of_the_same_profile_and_number_of_processors() {
    let folder = tempfile::tempdir().unwrap();
    let mut baseline = generous();
    baseline["processors"] = json!(processors() + 1);
    let output = guard(folder.path(), &baseline).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(serde_json::from_str::<Value>(&output.stdout).unwrap()["compared"], false);
    baseline["profile"] = json!("another");
    let output = guard(folder.path(), &baseline).await;
    assert_eq!(output.code, 2, "{output:?}");
    assert!(output.stderr.contains("the profile another"), "{output:?}");
    baseline = generous();
    baseline["cases"] = json!({});
    let output = guard(folder.path(), &baseline).await;
    assert_eq!(output.code, 2, "{output:?}");
    assert!(output.stderr.contains(CASE) && output.stderr.contains("make bench-baseline"), "{output:?}");
}

/// Permissions of a folder that the user of the actions can enter.
fn open() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o755)
}
