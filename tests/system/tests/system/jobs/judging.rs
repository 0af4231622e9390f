//! Built-in judges: files are compared with expected ones without a process.

use std::fs;

use model::{Outcome, TaskStatus};
use serde_json::{Value, json};

use super::{builder, console, job, measured::outside, request_in, run, sh, start};

fn compare(id: &str, found: &str, more: &Value) -> Value {
    let mut task = json!({"id": id, "compare": {"found": found, "expected": "expected"}});
    for (name, value) in more.as_object().unwrap() {
        let place = if name == "weight" || name == "fatal" { &mut task } else { &mut task["compare"] };
        place[name] = value.clone();
    }
    task
}

#[tokio::test]
async fn a_file_is_judged_without_a_process_by_each_rule() {
    let farm = start(builder()).await;
    let folder = tempfile::tempdir_in(farm.folder()).unwrap();
    fs::write(folder.path().join("expected"), "1 2\n3 4\n").unwrap();
    fs::write(folder.path().join("large"), vec![b'x'; (16 << 20) + 1]).unwrap();
    let made = json!({
        "id": "run",
        "command": ["/bin/sh", "-c", "printf '3 4\\n1  2' > swapped; printf '1 2\\n3.0000001 5' > wrong; mkdir folder"],
        "outputs": ["swapped", "wrong", "folder"]
    });
    let tasks = json!([
        made,
        compare("exact", "swapped", &json!({"by": "exact"})),
        compare("words", "swapped", &json!({})),
        compare("float", "wrong", &json!({"by": "float", "weight": 2})),
        compare("lines", "swapped", &json!({"by": "unordered_lines"})),
        compare("tokens", "swapped", &json!({"by": "unordered_tokens"})),
        compare("strict", "wrong", &json!({"pass": 1})),
        compare("missing", "never-made", &json!({})),
        compare("folder", "folder", &json!({})),
        compare("large", "large", &json!({})),
        json!({"id": "behind", "make_folder": "x", "dependencies": ["strict"]}),
    ]);
    let ended = run(&farm, request_in(job(&tasks), folder.path())).await;
    assert_eq!(ended.outcome(), Outcome::Failed);
    for (id, score) in [("exact", 0.0), ("words", 0.0), ("float", 0.75), ("lines", 0.5), ("tokens", 1.0)] {
        let report = ended.task(id);
        assert_eq!((report.status, report.score), (TaskStatus::Succeeded, Some(score)), "{report:#?}");
        assert_eq!(report.action, None, "no action runs for a comparison");
    }
    for (id, reason) in [
        ("strict", r#"wrong differs from expected: word 3 is "3.0000001", expected "3""#),
        ("missing", "never-made does not exist"),
        ("folder", "folder is not a file: it is a folder or a broken link"),
        ("large", "large has 16777217 bytes: at most 16777216 can be read here"),
    ] {
        assert_eq!((ended.status(id), ended.reason(id)), (TaskStatus::Failed, reason));
    }
    let behind = ended.task("behind");
    assert_eq!(behind.because_of.as_ref().map(model::TaskId::as_str), Some("strict"));
    // Ten weights: 0 + 0 + 2 · 0.75 + 0.5 + 1, and nothing for those that failed.
    assert_eq!(ended.job().score, Some(0.3));
    let text = console(&farm, &ended.record.build.key()).await;
    let said = "task tokens";
    assert!(!text.contains(said), "nothing is said of a full score: {text}");
    assert!(text.contains("task float:"), "{text}");
    assert!(text.contains(r#"wrong differs from expected: word 4 is "5", expected "4""#), "{text}");
}

#[tokio::test]
async fn a_command_is_judged_by_a_file_that_it_does_not_see() {
    let farm = start(builder()).await;
    let folder = tempfile::tempdir_in(farm.folder()).unwrap();
    fs::write(folder.path().join("expected"), "42\n").unwrap();
    let judged = |id: &str, script: &str, more: &Value| {
        let mut task = sh(id, script);
        task["outputs"] = json!([format!("{id}.out")]);
        task["compare"] = json!({"found": format!("{id}.out"), "expected": "expected"});
        for (name, value) in more.as_object().unwrap() {
            task[name] = value.clone();
        }
        task
    };
    let cheats = "cat expected > cheats.out 2>&1; true";
    let shaky = format!(
        "echo x >> {0}/n; test $(wc -l < {0}/n) = 3; echo $((41 + $?)) > shaky.out",
        outside(&farm).display()
    );
    let tasks = json!([
        judged("right", "echo 42 > right.out", &json!({"weight": 3})),
        judged("cheats", cheats, &json!({})),
        judged("fails", "echo 42 > fails.out; exit 1", &json!({})),
        judged("shaky", &shaky, &json!({"measure": {"runs": 8}})),
    ]);
    let ended = run(&farm, request_in(job(&tasks), folder.path())).await;
    let (right, cheats) = (ended.task("right"), ended.task("cheats"));
    assert_eq!((right.status, right.score), (TaskStatus::Succeeded, Some(1.0)), "{right:#?}");
    assert_eq!((cheats.status, cheats.score), (TaskStatus::Succeeded, Some(0.0)), "{cheats:#?}");
    assert_eq!((ended.status("fails"), ended.reason("fails")), (TaskStatus::Failed, "exit code 1"));
    let shaky = ended.task("shaky");
    let measured = shaky.measurement.as_deref().unwrap();
    assert_eq!((shaky.score, measured.state), (Some(0.0), model::MeasurementState::Rejected));
    assert_eq!(measured.runs.len(), 2, "the third run was wrong");
    assert_eq!(ended.job().score, Some(0.5));
}

#[tokio::test]
async fn a_wrong_comparison_is_refused_at_once() {
    let farm = start(builder()).await;
    for (task, expected) in [
        (
            json!({"id": "a", "command": ["x"], "compare": {"found": "f", "expected": "e"}}),
            r#"job.tasks[0] (a).compare.found: "f" is not an output of the task"#,
        ),
        (
            json!({"id": "a", "compare": {"found": "f", "expected": "../e"}}),
            "job.tasks[0] (a).compare.expected:",
        ),
        (
            json!({"id": "a", "compare": {"found": "f", "expected": "e", "relative": 1}}),
            "job.tasks[0] (a).compare.relative: allowed only with `by: float`",
        ),
        (
            json!({"id": "a", "command": ["x"], "measure": {"runs": 0}}),
            "job.tasks[0] (a).measure.runs: it is 0: expected 1 to 1000",
        ),
        (
            json!({"id": "a", "command": ["x"], "cache": true, "measure": {"runs": 2}}),
            "job.tasks[0] (a).cache: a measured task always runs",
        ),
        (
            json!({"id": "a", "command": ["x"], "limits": {"wall_ms": 50_000_000}, "measure": {"runs": 2}}),
            "job.tasks[0] (a).measure.limit_factor: with `limit_factor`, wall_ms of a run is 100000000",
        ),
        (
            json!({"id": "a", "make_folder": "f", "measure": {"runs": 2}}),
            "job.tasks[0] (a).measure: allowed only in a task with a command",
        ),
    ] {
        let request = super::request(job(&json!([task])));
        let refused = farm.client().create(&"g".parse().unwrap(), &request, None).await;
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
