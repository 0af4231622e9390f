//! The command `forebay up`: a farm on this machine that recovers from all faults.

use std::{collections::BTreeMap, time::Duration};

use farm::{Guard, Output, SOON, Up, alive, bare_command, processes_naming};
use model::{BuildKey, Outcome, State};
use tempfile::TempDir;

use crate::check::{script, until};

/// A folder and its guard, which ends all processes that name the folder.
struct Place {
    guard: Guard,
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        // Readable by the user that actions run as.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let folder = tempfile::Builder::new().prefix("forebay-test-").permissions(open).tempdir().unwrap();
        Self { guard: Guard::start(folder.path()), folder }
    }

    async fn up(&self, args: &[&str]) -> Up {
        Up::start(self.folder.path(), &self.guard, args, &[("FOREBAY_LEASE_TTL_SECONDS", "3")]).await
    }
}

fn json(output: &Output) -> serde_json::Value {
    assert_eq!(output.code, 0, "{output:?}");
    serde_json::from_str(&output.stdout).unwrap()
}

#[tokio::test]
async fn up_opens_the_users_folders_and_says_so() {
    let place = Place::new();
    let home = place.folder.path().join("home");
    let [source, other] = [home.join("source"), place.folder.path().join("other")];
    for folder in [&source, &other] {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("file"), "x").unwrap();
    }
    let env = [("HOME", home.to_str().unwrap()), ("FOREBAY_CONTEXT_PATHS", "[]")];
    let up = Up::start(place.folder.path(), &place.guard, &["--workspaces", "1"], &env).await;
    let [inside, outside] = [&source, &other].map(|folder| folder.to_str().unwrap());
    let built = up.cli(&["submit", "--follow", "--worker-dir", inside, "--", "cat", "file"]).await;
    assert_eq!((built.code, built.stdout.as_str()), (0, "x"), "{built:?}");
    let refused = up.cli(&["submit", "--follow", "--worker-dir", outside, "--", "cat", "file"]).await;
    let said = format!("{}{}", refused.stdout, refused.stderr);
    assert!(refused.code != 0 && said.contains("context_paths"), "{refused:?}");
    let log = std::fs::read_to_string(place.folder.path().join("up.log")).unwrap();
    let line = log.lines().find(|line| line.contains("builds may read")).unwrap();
    assert!(line.contains(home.to_str().unwrap()) && line.contains("127.0.0.0/8"), "{line}");
}

#[tokio::test]
async fn up_says_where_everything_is_and_runs_builds() {
    let place = Place::new();
    let mut up = place.up(&["--workers", "2", "--workspaces", "1"]).await;
    let endpoints = up.endpoints().await;
    let names: Vec<&str> = endpoints.processes.keys().map(String::as_str).collect();
    let wanted = [
        "archive",
        "cas",
        "dispatcher",
        "enqueuer",
        "executor",
        "gateway",
        "governor",
        "nats-server",
        "reaper",
        "redis-server",
        "scheduler",
        "trainer",
        "watchdog",
        "worker-1",
        "worker-2",
    ];
    assert_eq!(names, wanted);
    assert!(endpoints.processes.values().all(|pid| alive(*pid)));
    let http = crate::http::client();
    for url in endpoints.metrics.values() {
        let text = http.get(url).send().await.unwrap().text().await.unwrap();
        assert!(text.contains("forebay_"), "{url}: {text}");
    }
    let health = http.get(format!("{}/healthz", endpoints.http.unwrap())).send().await.unwrap();
    assert!(health.status().is_success());
    let output = up.cli(&["submit", "--follow", "--", "echo", "hello"]).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "hello\n"), "{output:?}");
    let output = up.cli(&["exec", "--", "echo", "hello"]).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "hello\n"), "{output:?}");
    assert_eq!(json(&up.cli(&["workers", "--json"]).await).as_array().unwrap().len(), 2);
    assert_eq!(json(&up.cli(&["ls", "--json"]).await)["builds"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn up_starts_again_what_is_killed() {
    let place = Place::new();
    let mut up = place.up(&[]).await;
    let before = up.endpoints().await;
    for (name, pid) in &before.processes {
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(i32::try_from(*pid).unwrap()),
            nix::sys::signal::Signal::SIGKILL,
        )
        .unwrap();
        let again = || up.children().get(name).is_some_and(|now| now != pid && alive(*now));
        until(name, SOON, again).await;
    }
    let after = up.endpoints().await;
    assert_eq!((&after.nats, &after.redis, &after.http), (&before.nats, &before.redis, &before.http));
    let output = up.cli(&["submit", "--follow", "--", "echo", "hello"]).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "hello\n"), "{output:?}");
    let http = crate::http::client();
    let url = format!("{}/v1/builds", after.http.unwrap());
    // A gateway whose nats-server was killed during a request asks again after the timeout of the request.
    let answers = async {
        while !http.get(&url).send().await.is_ok_and(|list| list.status().is_success()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, answers).await.expect("the gateway answers again");
}

#[tokio::test]
async fn up_stops_with_everything_and_keeps_what_ended() {
    let place = Place::new();
    let mut up = place.up(&[]).await;
    let output = up.cli(&["submit", "--output", "x", "--json", "--", "sh", "-c", "echo kept > x"]).await;
    let id = json(&output)["id"].as_str().unwrap().to_owned();
    assert_eq!(up.cli(&["watch", &id]).await.code, 0);
    let stopped = std::time::Instant::now();
    assert!(up.stop().await.success());
    assert!(stopped.elapsed() < Duration::from_secs(5), "{:?}", stopped.elapsed());
    assert_eq!(processes_naming(up.data()), Vec::<u32>::new());
    assert!(!up.data().join("endpoints.json").exists());
    drop(up);

    let up = place.up(&[]).await;
    let view = json(&up.cli(&["get", &id, "--json"]).await);
    assert_eq!((&view["state"], &view["result"]["outcome"]), (&"FINISHED".into(), &"succeeded".into()));
    assert_eq!(up.cli(&["get", &id, "--output", "x", "-"]).await.stdout, "kept\n");
}

#[tokio::test]
async fn a_running_build_is_given_back_when_up_stops_and_runs_again_later() {
    let place = Place::new();
    let env = [("FOREBAY_DRAIN_SECONDS", "1"), ("FOREBAY_LEASE_TTL_SECONDS", "3")];
    let mut up = Up::start(place.folder.path(), &place.guard, &[], &env).await;
    let text = r#"echo attempt $FOREBAY_ATTEMPT; [ "$FOREBAY_ATTEMPT" != 1 ] || sleep 1000"#;
    let key = submit(&mut up, text).await;
    until("it runs", SOON, || !crate::check::processes_of(key.id).is_empty()).await;
    assert!(up.stop().await.success());
    assert!(crate::check::processes_of(key.id).is_empty());
    drop(up);
    let up = Up::start(place.folder.path(), &place.guard, &[], &env).await;
    let output = up.cli(&["watch", &key.to_string()]).await;
    assert!(output.code == 0 && output.stdout.ends_with("attempt 2\n"), "{output:?}");
}

async fn submit(up: &mut Up, text: &str) -> BuildKey {
    let client = up.client().await;
    let request = script(text);
    let reply = client.create(&"g".parse().unwrap(), &request, None).await.unwrap();
    BuildKey { group: reply.group, id: reply.id }
}

#[tokio::test]
async fn a_killed_up_is_recovered_by_the_next_one() {
    let place = Place::new();
    let mut up = place.up(&["--workspaces", "1"]).await;
    let running = submit(&mut up, r#"[ "$FOREBAY_ATTEMPT" != 1 ] || sleep 1000"#).await;
    until("it runs", SOON, || !crate::check::processes_of(running.id).is_empty()).await;
    let queued = submit(&mut up, "echo queued").await;
    let before: BTreeMap<String, u32> = up.children();
    up.process().kill9();
    up.process().wait_exit(SOON).await;

    let mut next = place.up(&["--workspaces", "1"]).await;
    let client = next.client().await;
    for key in [&running, &queued] {
        let output = next.cli(&["watch", &key.to_string()]).await;
        assert_eq!(output.code, 0, "{output:?}");
        let view = client.get(key).await.unwrap();
        assert_eq!(view.state, State::Finished);
        assert_eq!(view.record.result().unwrap().outcome, Outcome::Succeeded);
    }
    let left: Vec<&String> = before.iter().filter(|(_, pid)| alive(**pid)).map(|(name, _)| name).collect();
    assert!(left.is_empty(), "of the first one still live {left:?}");
}

#[tokio::test]
async fn children_of_a_killed_up_end_by_themselves_when_their_builds_have() {
    let place = Place::new();
    let env = [("FOREBAY_ORPHAN_SECONDS", "1"), ("FOREBAY_LEASE_TTL_SECONDS", "3")];
    let mut up = Up::start(place.folder.path(), &place.guard, &["--workspaces", "1"], &env).await;
    let go = place.folder.path().join("go");
    let running =
        submit(&mut up, &format!("while [ ! -e {} ]; do sleep 0.1; done; echo done", go.display())).await;
    until("it runs", SOON, || !crate::check::processes_of(running.id).is_empty()).await;
    let children = up.children();
    let mut signals = up.client().await.bus().client().subscribe("forebay.worker.control.>").await.unwrap();
    up.process().kill9();
    up.process().wait_exit(SOON).await;
    // Its workers receive a request to drain: they accept no new work and finish their builds.
    tokio::time::timeout(SOON, futures::StreamExt::next(&mut signals)).await.unwrap().unwrap();
    assert!(!crate::check::processes_of(running.id).is_empty());
    std::fs::write(&go, "").unwrap();
    until("all ended", SOON, || children.values().all(|pid| !alive(*pid))).await;
    assert!(!up.data().join("endpoints.json").exists());
    let mut next = place.up(&["--workspaces", "1"]).await;
    let view = next.client().await.get(&running).await.unwrap();
    assert_eq!((view.state, view.record.attempt), (State::Finished, model::Attempt::FIRST), "{view:?}");
    assert_eq!(view.record.result().unwrap().outcome, Outcome::Succeeded);
}

#[tokio::test]
async fn while_up_waits_for_builds_it_says_so_and_can_be_looked_at() {
    let place = Place::new();
    let env = [("FOREBAY_DRAIN_SECONDS", "120")];
    let mut up = Up::start(place.folder.path(), &place.guard, &["--workspaces", "1"], &env).await;
    let go = place.folder.path().join("go");
    let running = submit(&mut up, &format!("while [ ! -e {} ]; do sleep 0.1; done", go.display())).await;
    until("it runs", SOON, || !crate::check::processes_of(running.id).is_empty()).await;
    up.process().term();
    let text = format!("within 120 s (drain_seconds): 1 build is running: {running}");
    let log = up.process().log().to_owned();
    until("it says so", SOON, || std::fs::read_to_string(&log).unwrap().contains(&text)).await;
    let view = json(&up.cli(&["get", &running.to_string(), "--json"]).await);
    assert_eq!(view["state"], "IN_PROGRESS");
    std::fs::write(&go, "").unwrap();
    assert!(up.process().wait_exit(SOON).await.success());
    assert!(!up.data().join("endpoints.json").exists());
    drop(up);
    let mut next = place.up(&[]).await;
    let view = next.client().await.get(&running).await.unwrap();
    assert_eq!((view.state, view.record.attempt), (State::Finished, model::Attempt::FIRST), "{view:?}");
}

/// On a terminal, which `script` provides.
#[tokio::test]
async fn on_a_terminal_up_shows_its_banner_and_logs_to_its_folder() {
    let place = Place::new();
    let data = place.folder.path().join("quiet");
    let program = farm::forebay_binary();
    let up = format!(
        "exec '{}' up --no-services --nats-port 0 --redis-port 0 --http-port 0 --grpc-port 0 --data '{}'",
        program.display(),
        data.display()
    );
    let mut command = tokio::process::Command::new("script");
    command.args(["-qec", &up, "/dev/null"]).env("PATH", farm::with_tools()).env_remove("FOREBAY_LOG");
    let log = place.folder.path().join("terminal.log");
    let mut terminal = farm::Process::start("script", command, &log, &place.guard);
    until("it is up", SOON, || data.join("endpoints.json").exists()).await;
    let endpoints: serde_json::Value =
        serde_json::from_slice(&std::fs::read(data.join("endpoints.json")).unwrap()).unwrap();
    let pid = i32::try_from(endpoints["pid"].as_i64().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).unwrap();
    terminal.wait_exit(SOON).await;
    let shown = terminal.log_text();
    assert!(shown.contains("forebay is up after") && !shown.contains("INFO"), "{shown}");
    let logged = std::fs::read_to_string(data.join("logs/up.log")).unwrap();
    assert!(logged.contains("INFO") && logged.contains("started"), "{logged}");
}

#[tokio::test]
async fn slips_are_refused_or_warned_of() {
    let none = Output::of(bare_command(&["up", "--workspaces", "0"])).await;
    assert!(none.code == 2 && none.stderr.contains("--workspaces"), "{none:?}");
    let mut command = bare_command(&["ls", "--no-wait", "--nats", "nats://127.0.0.1:1"]);
    command.env("FOREBAY_WORKSPACEZ", "3");
    let output = Output::of(command).await;
    assert!(output.stderr.contains("did you mean FOREBAY_WORKSPACES?"), "{output:?}");
}

#[tokio::test]
async fn a_data_folder_has_one_up_at_a_time() {
    let place = Place::new();
    let mut up = place.up(&[]).await;
    let data = up.data().to_str().unwrap().to_owned();
    let ports = ["--nats-port", "0", "--redis-port", "0", "--http-port", "0"];
    let second = Output::of(bare_command(&[&["up", "--data", &data], &ports[..]].concat())).await;
    assert_eq!(second.code, 2, "{second:?}");
    let pid = up.process().pid().to_string();
    assert!(second.stderr.contains(&data) && second.stderr.contains(&pid), "{second:?}");
    assert_eq!(up.cli(&["submit", "--follow", "--", "true"]).await.code, 0);

    // It does not take over used ports either.
    let port = up.endpoints().await.nats.rsplit_once(':').unwrap().1.to_owned();
    let other = place.folder.path().join("other");
    let args = ["up", "--data", other.to_str().unwrap(), "--nats-port", &port, "--redis-port", "0"];
    let third = Output::of(bare_command(&[&args[..], &["--http-port", "0"]].concat())).await;
    assert!(third.code == 2 && third.stderr.contains(&port), "{third:?}");
}
