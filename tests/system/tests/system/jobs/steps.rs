//! Effects of tasks, their inputs, and their restrictions.

use std::{fs, io::Write as _, net::SocketAddr};

use axum::{Router, http::StatusCode, routing::get};
use bus::EventKind;
use client::WatchBody;
use farm::SOON;
use futures::StreamExt as _;
use model::{BuildRequest, Digest, Outcome, ReasonCode, Sequence, TaskStatus, ToolEvent};
use serde_json::json;

use super::{builder, console, job, request, request_in, run, sh, start};

/// One failing task of each kind; `ok` is independent of all of them.
#[tokio::test]
async fn a_task_that_fails_says_why_and_skips_only_what_depends_on_it() {
    let farm = start(builder()).await;
    let folder = tempfile::tempdir_in(farm.folder()).unwrap();
    fs::write(folder.path().join("file"), "text").unwrap();
    let outside = farm.folder().join("outside");
    fs::create_dir(&outside).unwrap();
    let with = |mut task: serde_json::Value, more: serde_json::Value| {
        for (name, value) in more.as_object().unwrap() {
            task[name] = value.clone();
        }
        task
    };
    let evil = format!("echo x > ../../escaped; echo x > {0}/x; echo $?; test ! -e {0}/x", outside.display());
    let tasks = json!([
        with(sh("exits", "echo out; echo err >&2; exit 3"), json!({"outputs": ["exits"]})),
        with(sh("behind", "true"), json!({"inputs": ["exits"], "outputs": ["behind"]})),
        with(sh("far-behind", "true"), json!({"dependencies": ["behind"]})),
        with(sh("missing-input", "true"), json!({"inputs": ["src/nowhere.c"]})),
        with(sh("makes-nothing", "true"), json!({"outputs": ["sub/made"]})),
        with(sh("unseen", "cat file"), json!({})),
        with(sh("slow", "sleep 60"), json!({"limits": {"wall_ms": 300}})),
        with(sh("judge", "echo 0.25 because; exit 1"), json!({"judge": true, "weight": 3})),
        with(sh("kind-judge", "echo 1"), json!({"judge": true})),
        with(sh("bad-judge", "echo NaN"), json!({"judge": true})),
        with(sh("evil", &evil), json!({})),
        with(sh("ok", "cat file; echo warned >&2"), json!({"inputs": ["file"]})),
    ]);
    let ended = run(&farm, request_in(job(&tasks), folder.path())).await;
    assert_eq!(ended.outcome(), Outcome::Failed);
    let status = |id: &str| ended.status(id);
    for id in ["exits", "missing-input", "makes-nothing", "unseen", "bad-judge"] {
        assert_eq!(status(id), TaskStatus::Failed, "{:#?}", ended.task(id));
    }
    assert_eq!((ended.task("exits").exit_code, ended.reason("exits")), (Some(3), "exit code 3"));
    assert_eq!(ended.reason("missing-input"), "src/nowhere.c does not exist");
    assert_eq!(ended.reason("makes-nothing"), "output sub/made is missing");
    assert!(ended.reason("bad-judge").contains("NaN"), "{}", ended.reason("bad-judge"));
    assert_eq!(status("slow"), TaskStatus::OverLimit, "{:#?}", ended.task("slow"));
    for id in ["behind", "far-behind"] {
        let task = ended.task(id);
        assert_eq!((task.status, task.because_of.as_ref().unwrap().as_str()), (TaskStatus::Skipped, "exits"));
    }
    assert_eq!((status("ok"), ended.task("judge").score), (TaskStatus::Succeeded, Some(0.25)));
    // The score is (3 · 0.25 + 1 + 0) / 5.
    assert_eq!(ended.job().score, Some(0.35));
    assert!(!outside.join("x").exists() && !farm.folder().join("escaped").exists());
    assert_eq!((ended.job().failed, ended.job().skipped), (6, 2), "{:#?}", ended.job());
    let reason = ended.record.result().unwrap().reason.clone().unwrap();
    assert!(reason.message.starts_with("6 of 12 tasks failed, 2 skipped"), "{}", reason.message);
    let text = console(&farm, &ended.record.build.key()).await;
    for said in ["task exits failed: exit code 3\n", "out\n", "err\n", "task ok:\ntext", "warned\n"] {
        assert!(text.contains(said), "{said:?} in {text}");
    }
}

#[tokio::test]
async fn a_failure_is_said_once_to_who_follows_the_job() {
    let farm = start(builder()).await;
    let file = farm.folder().join("job.json");
    let mut behind = sh("behind", "true");
    behind["dependencies"] = json!(["bad"]);
    let tasks = json!([sh("bad", "echo of the task; exit 3"), behind, sh("good", "true")]);
    fs::write(&file, json!({ "tasks": tasks }).to_string()).unwrap();
    let output = farm.cli(&["submit", "--follow", "--job", file.to_str().unwrap()]).await;
    let said = &output.stderr;
    assert_eq!(said.matches("exit code 3").count(), 1, "{said}");
    assert!(said.contains("task bad failed: exit code 3"), "{said}");
    assert!(said.contains("1 task skipped because bad failed"), "{said}");
    assert!(said.contains("1 of 3 tasks failed (tasks_failed)"), "{said}");
    assert_eq!(output.stdout, "of the task\n");
}

#[tokio::test]
async fn a_fatal_failure_stops_the_job_and_what_runs_of_it() {
    let farm = start(builder()).await;
    let mut fatal = sh("fatal", "sleep 0.5; exit 1");
    fatal["fatal"] = true.into();
    let marker = farm.folder().join("is-still-running");
    let runs = sh("runs", &format!(": {}; sleep 1000", marker.display()));
    let mut after = sh("after", "true");
    after["dependencies"] = json!(["runs"]);
    let ended = run(&farm, request(job(&json!([fatal, runs, after])))).await;
    assert_eq!(ended.status("fatal"), TaskStatus::Failed);
    for id in ["runs", "after"] {
        assert_eq!(ended.status(id), TaskStatus::Skipped);
        assert!(ended.reason(id).contains("task fatal is fatal"), "{}", ended.reason(id));
    }
    let gone = || crate::acting::processes_with(marker.to_str().unwrap()).is_empty();
    crate::check::until("running tasks have ended", SOON, gone).await;
}

/// Serves only the archive over HTTP.
async fn serve(archive: Vec<u8>) -> SocketAddr {
    let router = Router::new()
        .route("/src.tar.gz", get(move || std::future::ready(archive.clone())))
        .route("/secret", get(|| std::future::ready(StatusCode::FORBIDDEN)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

#[tokio::test]
async fn steps_need_no_executor_and_feed_those_that_do() {
    let farm = start(builder()).await;
    let made = tempfile::tempdir().unwrap();
    fs::create_dir(made.path().join("src")).unwrap();
    let mut script = fs::File::create(made.path().join("src/say.sh")).unwrap();
    script.write_all(b"echo said; cat ../data/*; ls -A . ../empty").unwrap();
    fs::write(made.path().join("src/unwanted"), "x").unwrap();
    let packed = std::process::Command::new("tar")
        .args(["-czf", "-", "-C", made.path().to_str().unwrap(), "src"])
        .output()
        .unwrap();
    let (archive, digest) = (packed.stdout.clone(), Digest::of(&packed.stdout));
    let url = format!("http://{}/src.tar.gz", serve(archive).await);
    let folder = tempfile::tempdir_in(farm.folder()).unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    fs::write(folder.path().join("data/one"), "1\n").unwrap();
    let wrong = Digest::of(b"other");
    let tasks = json!([
        {"id": "fetch", "fetch": {"url": url, "to": "dl/src.tar.gz", "digest": digest}},
        {"id": "unpack", "extract": {"from": "dl/src.tar.gz", "to": "work"}},
        {"id": "drop", "remove": "work/src/unwanted", "dependencies": ["unpack"]},
        {"id": "copy", "copy": {"from": "data", "to": "work/data"}},
        {"id": "empty", "make_folder": "work/empty"},
        {"id": "say", "command": ["/bin/sh", "-c", "sh say.sh > ../said"], "folder": "work/src",
            "inputs": ["work"], "outputs": ["work/said"], "dependencies": ["drop", "copy", "empty"]},
        {"id": "keep", "copy": {"from": "work/said", "to": "kept/said"}},
        {"id": "other", "fetch": {"url": url, "to": "dl/other", "digest": wrong}},
        {"id": "refused", "fetch": {"url": url.replace("src.tar.gz", "secret"), "to": "dl/secret"}},
    ]);
    let mut request = request_in(job(&tasks), folder.path());
    request.outputs = vec!["kept/*".into(), "data/*".into()];
    let ended = run(&farm, request).await;
    assert_eq!(
        ended.ids(|report| report.status == TaskStatus::Failed),
        ["other", "refused"],
        "{:#?}",
        ended.job()
    );
    assert!(ended.reason("other").contains(&wrong.to_string()), "{}", ended.reason("other"));
    assert!(ended.reason("refused").contains("403"), "{}", ended.reason("refused"));
    assert_eq!(ended.ids(|report| report.executor.is_some()), ["say"]);
    let outputs = ended.outputs(&farm).await;
    let said = String::from_utf8(outputs["kept/said"].clone()).unwrap();
    assert_eq!(said, "said\n1\n.:\nsay.sh\n\n../empty:\n");
    assert_eq!(outputs.keys().collect::<Vec<_>>(), ["data/one", "kept/said"]);
}

#[tokio::test]
async fn what_ends_is_told_meanwhile_and_each_task_once() {
    let farm = start(builder()).await;
    let tasks: Vec<_> = (0..6)
        .map(|at| {
            let mut task = sh(&format!("t{at}"), "sleep 0.2");
            task["dependencies"] = if at == 0 { json!([]) } else { json!([format!("t{}", at - 1)]) };
            task["env"] = json!({"N": at.to_string()});
            task
        })
        .collect();
    let ended = run(&farm, request(job(&tasks.into()))).await;
    assert_eq!(ended.outcome(), Outcome::Succeeded);
    let key = ended.record.build.key();
    let mut told = Vec::new();
    let mut events = 0;
    let mut watch = farm.client().watch(&key, Sequence(0), &[EventKind::Tool]);
    while let Some(event) = watch.next().await.unwrap() {
        let WatchBody::Tool(ToolEvent::TasksEnded { attempt, ended, tasks, reports, .. }) = event.body else {
            continue;
        };
        events += 1;
        told.extend(reports.iter().map(|report| report.id.to_string()));
        assert_eq!((attempt.0, tasks, ended), (1, 6, told.len() as u64));
    }
    assert_eq!(told, ["t0", "t1", "t2", "t3", "t4", "t5"]);
    assert!(events > 1, "progress is reported during the job");
}

#[tokio::test]
async fn its_actions_belong_to_the_group_of_the_build() {
    let farm = start(builder()).await;
    let mut live = farm.bus().client().subscribe("forebay.action.live.>").await.unwrap();
    farm.bus().client().flush().await.unwrap();
    let ended = run(&farm, request(job(&json!([sh("a", "true")])))).await;
    assert_eq!(ended.outcome(), Outcome::Succeeded, "{:#?}", ended.record);
    let group = loop {
        let message = tokio::time::timeout(SOON, live.next()).await.expect("it was executed").unwrap();
        let said: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
        if said["event"] == "ACTION_FINISHED" {
            break said["execution"]["group"].clone();
        }
    };
    assert_eq!(group, "g");
}

#[tokio::test]
async fn outputs_that_nothing_matches_are_none_and_hide_no_failure() {
    let farm = start(builder()).await;
    let wanting = |script: &str| {
        let mut task = sh("make", script);
        task["outputs"] = json!(["made"]);
        let job = job(&json!([task]));
        BuildRequest { outputs: vec!["*.log".into(), "made".into()], ..request(job) }
    };
    let ended = run(&farm, BuildRequest { outputs: vec!["*.log".into()], ..wanting("echo 1 > made") }).await;
    assert_eq!((ended.outcome(), ended.outputs(&farm).await.len()), (Outcome::Succeeded, 0));
    let ended = run(&farm, wanting("exit 1")).await;
    let reason = ended.record.result().unwrap().reason.as_ref().unwrap();
    assert_eq!(reason.code, ReasonCode::TasksFailed, "{reason:?}");
}

/// Each task requests little, but all of them together request more than any machine has.
#[tokio::test]
async fn a_job_that_copies_without_end_fails_with_a_reason_and_hurts_nobody() {
    let farm = start(builder()).await;
    let mut tasks = vec![json!({"id": "f0", "make_folder": "f0/file"})];
    for level in 0..40 {
        for name in ["x", "y"] {
            let mut copy = json!({"id": format!("{name}{level}"), "copy": {
                "from": format!("f{level}"), "to": format!("f{}/{name}", level + 1),
            }});
            let before: Vec<String> = match level {
                0 => vec!["f0".into()],
                _ => ["x", "y"].iter().map(|name| format!("{name}{}", level - 1)).collect(),
            };
            copy["dependencies"] = json!(before);
            tasks.push(copy);
        }
    }
    let mut all = sh("all", "find . | wc -l");
    all["inputs"] = json!(["f40"]);
    all["dependencies"] = json!(["x39", "y39"]);
    tasks.push(all);
    let ended = run(&farm, BuildRequest { outputs: vec!["**".into()], ..request(job(&tasks.into())) }).await;
    assert_eq!((ended.outcome(), ended.record.attempt.0), (Outcome::Failed, 1));
    let reason = ended.reports.iter().find_map(|task| task.reason.clone()).unwrap();
    assert!(reason.contains("files and folders exceed the limit"), "{reason}");
}
