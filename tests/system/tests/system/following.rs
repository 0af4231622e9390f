//! Output that a user sees when submitting a build and inspecting it.

use std::{process::Stdio, time::Duration};

use farm::{Farm, Output, SOON, bare_command};
use model::{BuildRequest, ExecutorStatus, ListRequest, Outcome, State, WorkspaceState};

use crate::check::{ended_as, script, until};

/// Parses the first line of `stderr`: `build ID in group GROUP`.
fn named(output: &Output) -> (String, String) {
    let first = output.stderr.lines().next().unwrap_or_default();
    let words: Vec<&str> = first.split(' ').collect();
    let ["build", id, "in", "group", group] = words.as_slice() else { panic!("{output:?}") };
    ((*id).to_owned(), (*group).to_owned())
}

#[tokio::test]
async fn following_names_the_build_first_and_may_exit_as_its_command() {
    let farm = Farm::builder().without("gateway").start().await;
    let output = farm.cli(&["submit", "--group", "ci", "--follow", "--", "true"]).await;
    let (id, group) = named(&output);
    assert_eq!(group, "ci");
    assert!(farm.client().find(id.parse().unwrap()).await.is_ok());
    assert!(!output.stderr.contains('['), "positions are shown only on request: {}", output.stderr);
    assert!(!output.stderr.contains('\u{1b}'), "this is not a terminal: {}", output.stderr);
    let output = farm.cli(&["watch", &id, "--positions"]).await;
    assert!(output.stderr.starts_with('['), "{}", output.stderr);

    let command = ["--exit-code", "command"];
    let shell =
        |text: &'static str| [&["submit", "--follow"], &command[..], &["--", "sh", "-c", text]].concat();
    assert_eq!(farm.cli(&shell("exit 77")).await.code, 77);
    assert_eq!(farm.cli(&shell("kill -KILL $$")).await.code, 137);
    assert_eq!(farm.cli(&shell("exit 0")).await.code, 0);
    let output = farm.cli(&["submit", "--follow", "--exit-code", "command", "--", "no-such-program"]).await;
    assert_eq!(output.code, 1, "no command ended");
    let failed = farm.submit("g", script("exit 9")).await;
    ended_as(&farm, &failed, Outcome::Failed).await;
    let watch = ["watch", &failed.id.to_string(), "--exit-code", "command"].map(ToOwned::to_owned);
    assert_eq!(farm.cli(&watch.each_ref().map(String::as_str)).await.code, 9);
    assert_eq!(farm.cli(&["watch", &failed.id.to_string()]).await.code, 1, "how it ended");
}

#[tokio::test]
async fn a_reader_that_goes_away_hides_no_failure() {
    let farm = Farm::builder().without("gateway").start().await;
    let mut follow =
        farm.command(&["submit", "--follow", "--", "sh", "-c", "seq 100000; sleep 0.2; seq 100000; exit 1"]);
    let mut follow = follow
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    drop(follow.stdout.take());
    let ended = tokio::time::timeout(SOON, follow.wait_with_output()).await.unwrap().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{told}");
    assert!(told.contains("FINISHED failed"), "{told}");
}

#[tokio::test]
async fn builds_are_found_by_the_beginning_of_their_id_and_as_the_last() {
    let farm = Farm::builder().without("gateway").start().await;
    let output = farm.cli(&["get", "@last"]).await;
    assert!(output.code == 2 && output.stderr.contains("no build"), "{output:?}");
    let id = "0a1b2c3d-0000-7000-8000-00000000000";
    for (end, group) in [("1", "a"), ("2", "b")] {
        let submit =
            ["submit", "--follow", "--group", group, "--id", &format!("{id}{end}"), "--", "echo", end];
        assert_eq!(farm.cli(&submit).await.code, 0);
    }
    let output = farm.cli(&["logs", "@last"]).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "2\n"), "{output:?}");
    let output = farm.cli(&["get", "0a1b2c3d"]).await;
    assert_eq!(output.code, 2);
    assert!(
        output.stderr.contains(&format!("a/{id}1")) && output.stderr.contains(&format!("b/{id}2")),
        "{output:?}"
    );
    let output = farm.cli(&["logs", "0A1B2C3D", "--group", "a"]).await;
    assert_eq!(output.stdout, "1\n", "{output:?}");
    let output = farm.cli(&["why", "b/0a1b2c3d-0000"]).await;
    assert!(output.code == 0 && output.stdout.contains("is not waiting"), "{output:?}");
    let output = farm.cli(&["cancel", "ffff"]).await;
    assert!(output.code == 2 && output.stderr.contains("give the whole id"), "{output:?}");
    let output = farm.cli(&["get", "xyz"]).await;
    assert!(output.code == 2 && output.stderr.contains("@last"), "{output:?}");
}

#[tokio::test]
async fn lists_are_filtered_and_fit_a_terminal() {
    let farm = Farm::builder().without("gateway").start().await;
    let label = |value: &str| [("branch".to_owned(), value.to_owned())].into();
    let long = format!("exit 1 # {}", "x".repeat(200));
    let failed =
        farm.submit("group-with-a-rather-long-name", BuildRequest { labels: label("main"), ..script(&long) });
    let failed = failed.await;
    let passed = farm.submit("ci", BuildRequest { labels: label("main"), ..script("true") }).await;
    let other = farm.submit("ci", BuildRequest { labels: label("dev"), ..script("true") }).await;
    for (key, outcome) in
        [(&failed, Outcome::Failed), (&passed, Outcome::Succeeded), (&other, Outcome::Succeeded)]
    {
        ended_as(&farm, key, outcome).await;
    }
    let list = async |more: &[&str]| farm.cli(&[&["ls"], more].concat()).await.stdout;
    let listed = list(&[]).await;
    assert_eq!(listed.lines().count(), 4, "{listed}");
    assert!(listed.lines().all(|line| line.chars().count() <= 80), "{listed}");
    let short: Vec<&str> = listed.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    for key in [&failed, &passed, &other] {
        let id = key.id.to_string();
        assert_eq!(short.iter().filter(|short| id.starts_with(**short)).count(), 1, "{listed}");
    }
    let wide = list(&["--wide"]).await;
    assert!(wide.contains(&failed.id.to_string()) && wide.contains(&"x".repeat(200)), "{wide}");
    assert!(wide.contains("branch=dev"), "{wide}");
    let main = list(&["--wide", "--label", "branch=main"]).await;
    assert!(main.contains(&failed.id.to_string()) && !main.contains(&other.id.to_string()), "{main}");
    let both = list(&["--wide", "--label", "branch=main", "--outcome", "failed"]).await;
    assert!(both.contains(&failed.id.to_string()) && !both.contains(&passed.id.to_string()), "{both}");
    let request = ListRequest { outcome: Some(Outcome::Failed), ..ListRequest::default() };
    assert!(farm.client().list(&"ci".parse().unwrap(), &request).await.unwrap().builds.is_empty());
    assert_eq!(farm.cli(&["ls", "--outcome", "ok"]).await.code, 2);
}

#[tokio::test]
async fn labels_do_not_steer_the_terminal() {
    let farm = Farm::builder().without("gateway").start().await;
    let labels = [("a".to_owned(), "\u{1b}[31m\nred".to_owned())].into();
    let key = farm.submit("g", BuildRequest { labels, ..script("true") }).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    for args in [&["get", "g/ID"][..], &["ls", "--wide"], &["why", "g/ID"]] {
        let args: Vec<String> = args.iter().map(|word| word.replace("g/ID", &key.to_string())).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = farm.cli(&args).await;
        assert!(output.code == 0 && !output.stdout.contains('\u{1b}'), "{output:?}");
        let shown = args[0] == "why" || output.stdout.contains(r"a=\u{1b}[31m\nred");
        assert!(shown, "{output:?}");
    }
}

#[tokio::test]
async fn workers_and_waits_are_told_as_they_are_now() {
    // Sooner than a heartbeat could report it.
    let farm = Farm::builder().env("FOREBAY_HEARTBEAT_SECONDS", "5").without("gateway").start().await;
    let busy = async || {
        let workers = farm.client().workers().await.unwrap();
        let states = workers.iter().flat_map(|worker| &worker.heartbeat.workspaces);
        states.filter(|state| matches!(state, WorkspaceState::Busy { .. })).count()
    };
    let running = farm.submit("g", script("sleep 600")).await;
    farm.wait_until(&running, SOON, |record| record.state() == State::InProgress).await;
    assert_eq!(busy().await, 1);
    assert_eq!(farm.cli(&["cancel", &running.to_string()]).await.code, 0);
    let freed = async {
        while busy().await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, freed).await.expect("the workspace is free as soon as its build ended");

    let worker = farm.client().workers().await.unwrap()[0].heartbeat.worker.clone();
    assert_eq!(farm.cli(&["drain", worker.as_str()]).await.code, 0);
    let waits = farm.submit("g", script("true")).await;
    let told = async |wanted: &str| loop {
        let output = farm.cli(&["why", &waits.to_string()]).await;
        if output.stdout.contains(wanted) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    tokio::time::timeout(SOON, told("every worker is draining"))
        .await
        .expect("why reports the reason for waiting");
    let mut worker = farm.take("worker");
    worker.term();
    assert!(worker.wait_exit(SOON).await.success());
    tokio::time::timeout(2 * SOON, told("no worker is running"))
        .await
        .expect("why reports the reason for waiting");
    let mut watch = farm.command(&["watch", &waits.to_string()]);
    let log = farm.folder().join("watch.log");
    let file = std::fs::File::create(&log).unwrap();
    let _watch =
        watch.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).kill_on_drop(true).spawn().unwrap();
    let says = || std::fs::read_to_string(&log).unwrap().contains("no worker is running");
    until("a watch reports the reason for waiting", SOON, says).await;
}

#[tokio::test]
async fn a_drained_executor_is_shown_as_draining_at_once() {
    // Its lease would be renewed only after twenty seconds.
    let farm = crate::acting::builder().lease_ttl(60).start().await;
    let executor = farm.bus().leases().executors().await.unwrap()[0].executor.clone();
    assert_eq!(farm.cli(&["drain", executor.as_str()]).await.code, 0);
    let draining = async {
        while farm.bus().leases().executors().await.unwrap()[0].status != ExecutorStatus::Draining {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), draining).await.expect("its lease says so");
}

#[tokio::test]
async fn a_watch_says_that_no_dispatcher_runs() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    let waits = farm.submit("g", script("true")).await;
    let log = farm.folder().join("watch.log");
    let file = std::fs::File::create(&log).unwrap();
    let mut watch = farm.command(&["watch", &waits.to_string()]);
    let _watch =
        watch.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).kill_on_drop(true).spawn().unwrap();
    let says = || std::fs::read_to_string(&log).unwrap().contains("no dispatcher is running");
    until("a watch reports the missing service", SOON, says).await;
}

#[tokio::test]
async fn a_wait_ends() {
    let farm = Farm::builder().only(&["dispatcher"]).start().await;
    let output = farm.cli(&["submit", "--wait", "1s", "--", "true"]).await;
    assert!(output.code == 4 && output.stderr.contains("enqueuer"), "{output:?}");
    assert!(output.stderr.contains("waiting up to 1s") && output.stderr.contains("waited 1s"), "{output:?}");
    let empty = farm.folder().join("empty");
    for command in ["ls", "workers", "quota"] {
        let mut command = bare_command(&[command, "--wait", "500ms", "--data"]);
        command.arg(&empty);
        let output = Output::of(command).await;
        assert!(output.code == 4 && output.stderr.contains("no farm is running in"), "{output:?}");
    }
    let mut command = bare_command(&["exec", "--data"]);
    command.arg(&empty).env("FOREBAY_WAIT", "500ms").args(["--", "true"]);
    let output = Output::of(command).await;
    assert!(output.code == 4 && output.stderr.contains("waited 500ms"), "{output:?}");
    let output = farm.cli(&["ls", "--wait", "never"]).await;
    assert!(output.code == 2 && output.stderr.contains("forever"), "{output:?}");
}

#[tokio::test]
async fn usage_does_not_ask_for_what_the_environment_says() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    let output = farm.cli(&["submit"]).await;
    assert!(output.code == 2 && output.stderr.contains("--job FILE"), "{output:?}");
    let output = farm.cli(&["watch"]).await;
    assert!(output.code == 2 && !output.stderr.contains("--data"), "{output:?}");
    let output = farm.cli(&["submit", "--", "echo hi | wc"]).await;
    assert!(output.code == 0 && output.stderr.contains("sh -c"), "{output:?}");
}
