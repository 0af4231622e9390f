//! Tasks that need one of several tasks, or the failure of one.

use model::{Outcome, TaskStatus};
use serde_json::{Value, json};

use super::{builder, job, request, run, sh, start};

fn after(mut task: Value, dependencies: Value) -> Value {
    task["dependencies"] = dependencies;
    task
}

#[tokio::test]
async fn after_a_failure_the_alternative_runs_and_the_build_still_fails() {
    let farm = start(builder()).await;
    let mut made = after(sh("lenient", "echo passed > verdict"), json!([{"failed": "strict"}]));
    made["outputs"] = json!(["verdict"]);
    let mut either = after(sh("either", "cat verdic?"), json!([{"any": ["strict", "lenient"]}]));
    either["inputs"] = json!(["verdic?"]);
    let tasks = json!([
        sh("strict", "exit 1"),
        made,
        either,
        after(sh("both", "true"), json!(["strict", "lenient"])),
        after(sh("neither", "true"), json!([{"any": ["strict", "both"]}])),
        after(sh("cleanup", "true"), json!([{"failed": "both"}])),
    ]);
    let ended = run(&farm, request(job(&tasks))).await;
    assert_eq!(ended.outcome(), Outcome::Failed);
    assert_eq!(
        ended.ids(|report| report.status == TaskStatus::Succeeded),
        ["lenient", "either"],
        "{:#?}",
        ended.reports
    );
    assert_eq!(ended.ids(|report| report.status == TaskStatus::Skipped), ["both", "neither", "cleanup"]);
    assert_eq!(ended.reason("neither"), "none of the tasks strict, both succeeded");
    for id in ["both", "neither", "cleanup"] {
        assert_eq!(ended.task(id).because_of.as_ref().map(model::TaskId::as_str), Some("strict"), "{id}");
    }
    let reason = ended.record.result().unwrap().reason.clone().unwrap();
    assert!(reason.message.starts_with("1 of 6 tasks failed, 3 skipped"), "{}", reason.message);
}

#[tokio::test]
async fn without_a_failure_a_build_succeeds_and_what_follows_failures_counts_nowhere() {
    let farm = start(builder()).await;
    let judge = |mut task: Value| {
        task["judge"] = true.into();
        task
    };
    let tasks = json!([
        judge(sh("strict", "echo 0.75")),
        judge(after(sh("lenient", "echo 0.5"), json!([{"failed": "strict"}]))),
        after(sh("either", "true"), json!([{"any": ["lenient", "strict"]}])),
    ]);
    let ended = run(&farm, request(job(&tasks))).await;
    assert_eq!(ended.outcome(), Outcome::Succeeded, "{:#?}", ended.record.result());
    assert_eq!((ended.job().succeeded, ended.job().failed, ended.job().skipped), (2, 0, 1));
    assert_eq!(ended.job().score, Some(0.75));
    assert_eq!(ended.reason("lenient"), "it runs only if task strict fails, which succeeded");
}
