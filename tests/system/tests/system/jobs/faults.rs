//! Jobs whose worker, build or farm disappears.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use farm::{Farm, SOON};
use model::{BuildRequest, Outcome, State, TaskStatus};
use remote::Remote;
use serde_json::{Value, json};

use super::{builder, ended, job, request, run, sh, start};
use crate::{
    acting::{self, processes_with},
    check::{BOUND, until},
};

/// Creates sequential and parallel tasks that record their runs.
fn noted(farm: &Farm, count: usize, seconds: f64) -> Vec<Value> {
    let notes = farm.folder().join("notes");
    fs::create_dir_all(&notes).unwrap();
    let _ = fs::set_permissions(&notes, std::os::unix::fs::PermissionsExt::from_mode(0o777));
    let one = |at: usize| {
        let note = notes.join(format!("t{at}"));
        let mut task = sh(
            &format!("t{at}"),
            &format!("echo run >> {}; sleep {seconds}; echo {at} > out{at}", note.display()),
        );
        task["outputs"] = json!([format!("out{at}")]);
        if at >= 2 {
            task["inputs"] = json!([format!("out{}", at - 2)]);
        }
        task
    };
    (0..count).map(one).collect()
}

fn runs(farm: &Farm) -> Vec<usize> {
    let entries = fs::read_dir(farm.folder().join("notes")).unwrap();
    entries.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap().lines().count()).collect()
}

#[tokio::test]
async fn a_job_whose_worker_is_killed_goes_on_elsewhere_with_what_was_done() {
    let farm = start(builder().with("worker")).await;
    let key = farm.submit("g", request(job(&noted(&farm, 12, 0.4).into()))).await;
    let (_, started) = farm.wait_until(&key, SOON, |record| record.state() == State::InProgress).await;
    until("some tasks have ended", SOON, || runs(&farm).len() >= 6).await;
    let done = runs(&farm).len() as u64 - 2;
    // Whichever of the two workers runs it.
    let worker = started.invocation().unwrap().worker.to_string();
    let mut others = Vec::new();
    loop {
        let mut process = farm.take("worker");
        if worker_is(&farm, &worker, process.pid()) {
            process.kill9();
            process.wait_exit(SOON).await;
            break;
        }
        others.push(process);
    }
    for process in others {
        farm.keep(process);
    }
    let ended = ended(&farm, &key).await;
    assert_eq!((ended.outcome(), ended.record.attempt.0), (Outcome::Succeeded, 2), "{:#?}", ended.record);
    assert!(ended.job().cached >= done, "{} of at least {done} were there already", ended.job().cached);
    assert_eq!(ended.job().succeeded, 12);
    // Tasks that ran when the worker died were joined, or ended and ran again: nothing else ran twice.
    let twice = runs(&farm).iter().filter(|count| **count > 1).count();
    assert!(twice <= 4 && runs(&farm).len() == 12, "{:?}", runs(&farm));
}

/// Returns whether the worker of this name is the process: its folder has its name and is locked by it.
fn worker_is(farm: &Farm, worker: &str, pid: u32) -> bool {
    let lock = farm.data().join("workspaces").join(worker).join("lock");
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    fds.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|path| {
        // The folder had another name when it was locked; the kernel reports the current one.
        path == lock
    })
}

#[tokio::test]
async fn a_cancelled_job_ends_what_runs_of_it() {
    let farm = start(builder()).await;
    let marker = farm.folder().join("runs-for-long");
    let tasks: Vec<Value> =
        (0..3).map(|at| sh(&format!("t{at}"), &format!(": {} {at}; sleep 1000", marker.display()))).collect();
    let key = farm.submit("g", request(job(&tasks.into()))).await;
    let running = || processes_with(marker.to_str().unwrap()).len();
    until("tasks run", SOON, || running() >= 3).await;
    farm.client().cancel(&key, Some("test".into())).await.unwrap();
    let took = until("they are ended", SOON, || running() == 0).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    let record = crate::check::ended_as(&farm, &key, Outcome::Cancelled).await;
    assert_eq!(record.attempt.0, 1);
}

#[tokio::test]
async fn a_job_that_runs_too_long_is_ended_and_says_how_far_it_came() {
    let farm = start(builder()).await;
    let marker = farm.folder().join("runs-too-long");
    let slow = sh("slow", &format!(": {}; sleep 1000", marker.display()));
    let mut after = sh("after", "true");
    after["dependencies"] = json!(["slow"]);
    let tasks = json!([sh("quick", "true"), slow, after]);
    let request = BuildRequest { timeout_seconds: Some(3), ..request(job(&tasks)) };
    let ended = run(&farm, request).await;
    assert_eq!(ended.outcome(), Outcome::TimedOut, "{:#?}", ended.record);
    assert_eq!(ended.status("quick"), TaskStatus::Succeeded);
    assert_eq!((ended.status("slow"), ended.status("after")), (TaskStatus::Skipped, TaskStatus::Skipped));
    until("it is ended", BOUND, || processes_with(marker.to_str().unwrap()).is_empty()).await;
}

#[tokio::test]
async fn an_executor_that_is_killed_fails_no_task() {
    let farm = start(builder()).await;
    let key = farm.submit("g", request(job(&noted(&farm, 8, 0.5).into()))).await;
    until("some tasks have run", SOON, || runs(&farm).len() >= 4).await;
    drop(farm.take("executor"));
    let ended = ended(&farm, &key).await;
    assert_eq!((ended.outcome(), ended.record.attempt.0), (Outcome::Succeeded, 1), "{:#?}", ended.job());
    assert_eq!(ended.job().succeeded, 8);
}

/// Deletes a blob from the farm's store, as an eviction would.
async fn evict(farm: &Farm, remote: &Remote, content: &str) {
    let digest = acting::SHA256.digest(content.as_bytes());
    let name = format!("{}-{}", digest.hex(), content.len());
    let found = walk(&farm.data()).into_iter().filter(|path| path.ends_with(&name));
    let gone = found.map(|path| fs::remove_file(path).unwrap()).count();
    assert!(gone > 0, "{name} is not in the store");
    for _ in 0..500 {
        if remote.missing(&[digest]).await.unwrap() == [digest] {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{name} is still there");
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(walk(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

#[tokio::test]
async fn what_the_store_lost_of_earlier_tasks_is_made_again() {
    // The presence of blobs is not cached for long.
    let farm = start(builder().env("FOREBAY_CAS_KEEP_SECONDS", "1")).await;
    let remote = acting::remote(&farm).await;
    let notes = farm.folder().join("notes");
    fs::create_dir(&notes).unwrap();
    fs::set_permissions(&notes, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let at = notes.display();
    let task = |id: &str, script: String, more: Value| {
        let mut task = sh(id, &format!("echo run >> {at}/{id}; {script}"));
        for (name, value) in more.as_object().unwrap() {
            task[name] = value.clone();
        }
        task
    };
    let tasks = json!([
        task("first", "echo one > x".into(), json!({"outputs": ["x"]})),
        task("second", "cat x x > y".into(), json!({"inputs": ["x"], "outputs": ["y"]})),
        task(
            "gate",
            format!("until [ -e {at}/go ]; do sleep 0.02; done"),
            json!({"dependencies": ["second"]})
        ),
        task(
            "last",
            "cat y y > z".into(),
            json!({"inputs": ["y"], "dependencies": ["gate"], "outputs": ["z"]})
        ),
    ]);
    let key = farm.submit("g", BuildRequest { outputs: vec!["?".into()], ..request(job(&tasks)) }).await;
    until("the gate runs", SOON, || notes.join("gate").exists()).await;
    for content in ["one\n", "one\none\n"] {
        evict(&farm, &remote, content).await;
    }
    fs::write(notes.join("go"), "").unwrap();
    let ended = ended(&farm, &key).await;
    assert_eq!((ended.outcome(), ended.job().succeeded), (Outcome::Succeeded, 4), "{:#?}", ended.reports);
    let runs = |id: &str| fs::read_to_string(notes.join(id)).unwrap().lines().count();
    assert_eq!((runs("first"), runs("second"), runs("gate"), runs("last")), (2, 2, 1, 1));
    let outputs = ended.outputs(&farm).await;
    assert_eq!(outputs["z"], b"one\none\none\none\n", "{outputs:?}");
}

#[tokio::test]
async fn a_registry_that_does_not_answer_is_named_and_fails_only_its_task() {
    // No server has this port.
    let registries = json!({"127.0.0.1:1": {"plain_http": true}}).to_string();
    let farm =
        Farm::builder().with_actions().workspaces(1).env("FOREBAY_REGISTRIES", &registries).start().await;
    let mut task = sh("in-image", "true");
    task["platform"] = json!({"container-image": "docker://127.0.0.1:1/tools/gcc:1"});
    task["retries"] = json!(0);
    let ended = run(&farm, request(job(&json!([task, sh("other", "true")])))).await;
    assert_eq!(ended.status("other"), TaskStatus::Succeeded, "{:#?}", ended.reports);
    assert_eq!(ended.status("in-image"), TaskStatus::FarmFailed, "{:#?}", ended.reports);
    let reason = ended.reason("in-image");
    assert!(reason.contains("the registry 127.0.0.1:1 does not give it now"), "{reason}");
    let said = super::console(&farm, &ended.record.build.key()).await;
    assert!(said.contains("cannot run a task now, retrying: ") && said.contains("the registry"), "{said}");
    assert!(!said.contains("could not reach"), "{said}");
}
