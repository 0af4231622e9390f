//! What the events of a job say while its tasks run.

use std::{fs, path::Path};

use bus::EventKind;
use client::WatchBody;
use farm::{Farm, SOON};
use model::{BuildKey, Outcome, RunningTasks, Sequence, TaskReport, ToolEvent};
use serde_json::{Value, json};

use super::{builder, ended, job, request, sh, start};
use crate::emergencies::waiting_executions;

/// A task that runs until the file exists. Its command differs from that of other tasks: equal ones are executed once.
fn until_exists(id: &str, file: &Path) -> Value {
    sh(id, &format!(": {id}; while [ ! -e '{}' ]; do sleep 0.02; done", file.display()))
}

/// One event about the tasks of a job.
struct Event {
    ended: u64,
    reports: Vec<TaskReport>,
    running: RunningTasks,
}

impl Event {
    fn names(&self) -> Vec<&str> {
        self.running.longest.iter().map(|task| task.id.as_str()).collect()
    }
}

/// The first event about tasks that is as wanted, and the number of those before it.
async fn wait_for(farm: &Farm, key: &BuildKey, wanted: impl Fn(&Event) -> bool) -> (Event, usize) {
    let mut watch = farm.client().watch(key, Sequence(0), &[EventKind::Tool]);
    let mut before = 0;
    let find = async {
        loop {
            let event = watch.next().await.unwrap().expect("the build ended before such an event");
            let WatchBody::Tool(ToolEvent::TasksEnded { ended, reports, running, .. }) = event.body else {
                continue;
            };
            let event = Event { ended, reports, running: running.unwrap() };
            if wanted(&event) {
                return (event, before);
            }
            before += 1;
        }
    };
    tokio::time::timeout(SOON, find).await.expect("no such event")
}

#[tokio::test]
async fn what_runs_is_told_before_anything_ends() {
    let farm = start(builder()).await;
    let mark = farm.folder().join("mark");
    let before = farm.bus().clock().now();
    let key = farm.submit("g", request(job(&json!([until_exists("long", &mark)])))).await;
    let (event, others) = wait_for(&farm, &key, |event| event.running.count == 1).await;
    assert_eq!((event.names(), event.ended, event.reports.len()), (vec!["long"], 0, 0));
    let task = &event.running.longest[0];
    assert!(before <= task.since_ms && task.since_ms <= event.running.at_ms, "{:?}", event.running);
    assert_eq!(event.running.critical_path_ms, None, "no run time is known");
    assert!(others <= 1, "{others} events before");
    fs::write(&mark, "").unwrap();
    assert_eq!(ended(&farm, &key).await.outcome(), Outcome::Succeeded);
    let (last, _) = wait_for(&farm, &key, |event| event.ended == 1).await;
    assert_eq!((last.running.count, last.running.critical_path_ms), (0, Some(0)));
}

#[tokio::test]
async fn what_waits_for_an_executor_does_not_run_and_what_is_left_is_known() {
    let farm = start(builder().workspaces(2).env("FOREBAY_EXECUTOR_SLOTS", "1")).await;
    let [earlier, first, second] = ["earlier", "first", "second"].map(|name| farm.folder().join(name));
    // Another build has both executors until the first tasks are queued, so that their priorities give their order.
    let both = json!([until_exists("one", &earlier), until_exists("other", &earlier)]);
    let holder = farm.submit("g", request(job(&both))).await;
    wait_for(&farm, &holder, |event| event.running.count == 2).await;
    let with = |mut task: Value, name: &str, value: Value| {
        task[name] = value;
        task
    };
    let mut tasks = vec![
        with(sh("known", "sleep 0.3"), "priority", json!(10)),
        with(until_exists("first", &first), "priority", json!(9)),
        with(until_exists("second", &second), "priority", json!(9)),
    ];
    for at in 0..20 {
        let waits = sh(&format!("waits{at}"), &format!("true {at}"));
        tasks.push(with(waits, "dependencies", json!(["known"])));
    }
    tasks.push(with(sh("last", "true last"), "dependencies", json!(["waits7"])));
    let key = farm.submit("g", request(job(&tasks.into()))).await;
    waiting_executions(&farm, 3).await;
    fs::write(&earlier, "").unwrap();
    // They occupy both executors, so that the others wait.
    let held = |event: &Event| ["first", "second"].iter().all(|id| event.names().contains(id));
    let (event, _) = wait_for(&farm, &key, |event| event.ended == 1 && held(event)).await;
    assert_eq!(event.running.count, 2, "{:?}", event.running);
    let left = event.running.critical_path_ms.unwrap();
    assert!((600..6000).contains(&left), "two tasks of the mean of 0.3 s, not {left} ms");
    fs::write(&first, "").unwrap();
    let (event, _) = wait_for(&farm, &key, |event| event.ended == 23 && event.names() == ["second"]).await;
    assert!(event.running.critical_path_ms.unwrap() < left, "{:?}", event.running);
    fs::write(&second, "").unwrap();
    assert_eq!(ended(&farm, &key).await.outcome(), Outcome::Succeeded);
}
