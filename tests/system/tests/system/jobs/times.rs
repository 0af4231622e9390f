//! When tasks ran, and as which action.

use bus::FarmClock;
use model::{Millis, Outcome, TaskReport, TaskStatus};
use serde_json::{Value, json};

use super::{Ended, builder, job, request, run, sh, start, store};

fn with(mut task: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        task[name] = value.clone();
    }
    task
}

/// The start and the end of a task's last try.
fn times(report: &TaskReport) -> Option<(Millis, Millis)> {
    Some((report.started_at_ms?, report.ended_at_ms?))
}

fn assert_never_started(ended: &Ended, id: &str) {
    let report = ended.task(id);
    assert_eq!((times(report), report.action), (None, None), "{report:#?}");
}

#[tokio::test]
async fn a_report_says_when_its_task_ran_and_as_which_action() {
    let farm = start(builder()).await;
    let clock: &FarmClock = farm.bus().clock();
    let tasks = json!([
        {"id": "folder", "make_folder": "made"},
        sh("first", "sleep 0.3"),
        with(sh("second", "true"), &json!({"dependencies": ["first", "folder"]})),
        with(sh("no-input", "true"), &json!({"inputs": ["nowhere"]})),
        with(sh("behind", "true"), &json!({"dependencies": ["no-input"]})),
    ]);
    let before = clock.now();
    let ended = run(&farm, request(job(&tasks))).await;
    let after = clock.now();
    let (started, stopped) = times(ended.task("first")).unwrap();
    assert!(before <= started && stopped <= after, "{before:?} {started:?} {stopped:?} {after:?}");
    assert!(stopped.since(started).as_millis() >= 300, "{:#?}", ended.task("first"));
    assert!(times(ended.task("second")).unwrap().0 >= stopped, "{:#?}", ended.task("second"));
    let action = ended.task("first").action.unwrap();
    assert!(store(&farm).contains(&action).await.unwrap(), "{action}");
    assert!(times(ended.task("folder")).is_some());
    assert_eq!(ended.task("folder").action, None, "an internal step has no action");
    assert_never_started(&ended, "no-input");
    assert_never_started(&ended, "behind");

    let again = run(&farm, request(job(&json!([sh("renamed", "sleep 0.3")])))).await;
    let cached = again.task("renamed");
    assert!(cached.cached && cached.action == Some(action), "{cached:#?}");
    let (started, stopped) = times(cached).unwrap();
    assert!(started >= after && stopped >= started, "the times are those of this build: {cached:#?}");
}

#[tokio::test]
async fn a_task_that_is_cancelled_has_the_times_of_its_run() {
    let farm = start(builder()).await;
    let tasks = json!([
        sh("slow", "sleep 60"),
        with(sh("fails", "sleep 0.5; exit 1"), &json!({"fatal": true})),
        with(sh("behind", "true"), &json!({"dependencies": ["fails"]})),
    ]);
    let ended = run(&farm, request(job(&tasks))).await;
    assert_eq!((ended.outcome(), ended.status("slow")), (Outcome::Failed, TaskStatus::Skipped));
    let (started, stopped) = times(ended.task("slow")).unwrap();
    assert!(stopped.since(started).as_millis() >= 300, "{:#?}", ended.task("slow"));
    assert!(ended.task("slow").action.is_some());
    assert_never_started(&ended, "behind");
}
