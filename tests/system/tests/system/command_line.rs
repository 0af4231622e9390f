//! The command line: exit codes, and behaviour while no service answers.

use std::{process::Stdio, time::Duration};

use farm::{Farm, Output, Process, SOON, Servers, bare_command};
use model::{BuildRequest, Outcome, State};

use crate::check::{ended_as, script, until};

#[tokio::test]
async fn submit_and_watch_exit_as_the_build_ends() {
    let farm = Farm::builder().without("gateway").start().await;
    let shell = |text: &'static str| ["submit", "--follow", "--", "sh", "-c", text];
    let output = farm.cli(&shell("echo out; echo err >&2")).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "out\n"), "{output:?}");
    assert!(output.stderr.contains("err\n"), "{output:?}");
    assert_eq!(farm.cli(&shell("exit 7")).await.code, 1);
    assert_eq!(farm.cli(&["submit", "--follow", "--", "no-such-program"]).await.code, 1);
    assert_eq!(farm.cli(&["submit", "--follow", "--timeout", "1s", "--", "sleep", "100"]).await.code, 1);
    assert_eq!(farm.cli(&["submit", "--follow", "--worker-dir", "/nowhere", "--", "true"]).await.code, 1);
    assert_eq!(farm.cli(&["submit", "--follow", "--dir", "/nowhere", "--", "true"]).await.code, 2);
    assert_eq!(farm.cli(&["submit", "--follow", "--output", "/x", "--", "true"]).await.code, 2);

    let failed = farm.submit("g", script("exit 1")).await;
    assert_eq!(farm.cli(&["watch", &failed.to_string()]).await.code, 1);
    let end = farm.history(&failed).await.last().unwrap().0.to_string();
    assert_eq!(farm.cli(&["watch", &failed.to_string(), "--from", &end]).await.code, 1);
    let rejected =
        farm.publish("g", model::Priority::Batch, &BuildRequest { command: vec![], ..script("") }).await;
    ended_as(&farm, &rejected, Outcome::Rejected).await;
    assert_eq!(farm.cli(&["watch", &rejected.to_string()]).await.code, 2);
}

#[tokio::test]
async fn a_cancelled_build_exits_with_3() {
    let farm = Farm::builder().without("gateway").start().await;
    let id = model::BuildId::generate().to_string();
    let mut follow =
        farm.command(&["submit", "--follow", "--id", &id, "--group", "g", "--", "sleep", "1000"]);
    let mut follow = follow.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let key = format!("g/{id}").parse().unwrap();
    farm.wait_until(&key, SOON, |record| record.state() == State::InProgress).await;
    let output = farm.cli(&["cancel", &id]).await;
    assert_eq!(output.code, 0, "{output:?}");
    let status = tokio::time::timeout(SOON, follow.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(3));
    // Cancelling twice is not an error.
    assert_eq!(farm.cli(&["cancel", &id]).await.code, 0);
    ended_as(&farm, &key, Outcome::Cancelled).await;
}

#[tokio::test]
async fn an_expired_build_exits_with_3() {
    let farm = Farm::builder().without("gateway").without("worker").start().await;
    let output = farm.cli(&["submit", "--follow", "--queue-timeout", "1s", "--", "true"]).await;
    assert_eq!(output.code, 3, "{output:?}");
}

#[tokio::test]
async fn where_nobody_answers_it_exits_with_4_or_waits() {
    let farm = Farm::builder().only(&["dispatcher", "reaper", "worker"]).start().await;
    let output = farm.cli(&["submit", "--no-wait", "--", "true"]).await;
    assert!(output.code == 4 && output.stderr.contains("enqueuer"), "{output:?}");

    let mut waiting = farm.command(&["submit", "--follow", "--", "echo", "late"]);
    let waiting =
        waiting.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let waiting = waiting.spawn().unwrap();
    let pid = waiting.id().unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(farm::alive(pid), "it does not wait");
    farm.keep(farm.spawn("enqueuer").await);
    let output = tokio::time::timeout(SOON, waiting.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), b"late\n".as_slice()),
        "{output:?}"
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("enqueuer"));

    farm.servers.kill_nats();
    for args in [&["submit", "--no-wait", "--", "true"][..], &["ls", "--no-wait"], &["workers", "--no-wait"]]
    {
        let output = farm.cli(args).await;
        assert!(
            output.code == 4 && output.stderr.contains(&farm.servers.nats_address()),
            "{args:?} {output:?}"
        );
    }
}

#[tokio::test]
async fn a_gateway_on_the_bus_comes_before_the_address_in_the_settings() {
    let farm = Farm::all().await;
    let file = farm.folder().join("client.toml");
    // No gateway listens there.
    std::fs::write(&file, "grpc_listen = \"127.0.0.1:1\"\n").unwrap();
    let project = farm.folder().join("project");
    std::fs::create_dir_all(&project).unwrap();
    std::fs::write(project.join("in.txt"), "one\n").unwrap();
    let run = async |args: &[&str]| {
        let mut args = args.to_vec();
        args.splice(1..1, ["--config", file.to_str().unwrap()]);
        let mut command = farm.command(&args);
        command.env_remove("FOREBAY_GRPC_LISTEN");
        let output = Output::of(command).await;
        assert_eq!(output.code, 0, "{args:?} {output:?}");
        output.stdout
    };
    let (dir, id) = (project.to_str().unwrap(), model::BuildId::generate().to_string());
    let key = format!("default/{id}").parse().unwrap();
    run(&["submit", "--id", &id, "--dir", dir, "--output", "in.txt", "--", "true"]).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    assert_eq!(run(&["get", &id, "--output", "in.txt", "-"]).await, "one\n");
    run(&["cas", "put", dir]).await;
}

/// Prepares `forebay serve NAME` against servers that may not run.
fn serve(servers: &Servers, service: &str, more: &[&str]) -> tokio::process::Command {
    let mut command = bare_command(&["serve", service]);
    let listen = servers.folder().join(format!("{service}.json"));
    command.args(more).args(["--nats", &servers.nats_url(), "--redis", &servers.redis_url(), "--data"]);
    command.arg(servers.folder().join("data")).env("FOREBAY_LISTEN_FILE", listen);
    command.env("FOREBAY_HTTP_LISTEN", "127.0.0.1:0");
    command
}

#[tokio::test]
async fn a_service_without_servers_exits_with_4_or_waits_for_them() {
    let servers = Servers::prepare(1);
    for service in farm::SERVICES {
        let output = Output::of(serve(&servers, service, &["--no-wait"])).await;
        assert_eq!(output.code, 4, "{service}: {output:?}");
        assert!(output.stderr.contains(&servers.nats_address()), "{service}: {output:?}");
    }
    let start = |service: &str| {
        let log = servers.folder().join("logs").join(format!("{service}.log"));
        Process::start(service, serve(&servers, service, &[]), &log, servers.guard())
    };
    let mut waiting: Vec<Process> = farm::SERVICES.into_iter().map(start).collect();
    for process in &waiting {
        until("it says that it waits", SOON, || process.log_text().contains("waiting for nats-server")).await;
    }
    servers.start_nats().await;
    for process in &waiting {
        until("it names the command", SOON, || process.log_text().contains("forebay topology --apply")).await;
    }
    let output = Output::of(serve(&servers, "dispatcher", &["--no-wait"])).await;
    assert!(output.code == 4 && output.stderr.contains("forebay topology --apply"), "{output:?}");
    let created = Output::of(bare_command(&["topology", "--apply", "--nats", &servers.nats_url()])).await;
    assert_eq!(created.code, 0, "{created:?}");
    // Services that need Redis keep waiting, and report it.
    for process in
        waiting.iter().filter(|process| ["enqueuer", "dispatcher", "reaper"].contains(&process.name()))
    {
        until("it says that it waits", SOON, || process.log_text().contains("waiting for Redis")).await;
    }
    let mut output = serve(&servers, "dispatcher", &["--no-wait"]);
    output.env_remove("FOREBAY_LISTEN_FILE");
    let output = Output::of(output).await;
    assert!(output.code == 4 && output.stderr.contains(&servers.redis_address()), "{output:?}");
    servers.start_redis().await;
    for process in &mut waiting {
        let listen = servers.folder().join(format!("{}.json", process.name()));
        until(process.name(), SOON, || listen.exists()).await;
    }
    // After SIGTERM each of them drains.
    for process in &mut waiting {
        process.term();
        assert!(process.wait_exit(Duration::from_secs(5)).await.success(), "{}", process.log_tail());
    }
}

/// It reports on the machine of the test, so which checks fail is unknown.
#[tokio::test]
async fn doctor_measure_needs_no_farm_and_no_valid_settings() {
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("invalid.toml");
    std::fs::write(&settings, "nats_port = [").unwrap();
    let run = async |more: &[&str]| {
        let mut command = bare_command(&["doctor", "--measure", "--nats", "nats://127.0.0.1:1", "--config"]);
        command.arg(&settings).args(more);
        Output::of(command).await
    };
    let output = run(&["--json"]).await;
    let findings: Vec<serde_json::Value> =
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let disturbs = findings.iter().any(|finding| finding["status"] == "fail");
    assert_eq!((output.code, output.stderr.as_str()), (i32::from(disturbs), ""), "{output:?}");
    let checks: Vec<&str> = findings.iter().filter_map(|finding| finding["check"].as_str()).collect();
    let expected = [
        "virtual",
        "governor",
        "turbo",
        "throttling",
        "smt",
        "cores",
        "caches",
        "isolated",
        "binding",
        "hugepages",
        "khugepaged",
        "swap",
        "aslr",
        "steal",
        "load",
        "slots",
        "summary",
    ];
    assert_eq!(checks, expected);
    let output = run(&[]).await;
    assert!([0, 1].contains(&output.code), "{output:?}");
    for (line, check) in output.stdout.lines().zip(expected) {
        assert_eq!(line.split_whitespace().nth(1), Some(check), "{output:?}");
    }
}

#[tokio::test]
async fn a_plot_that_cannot_be_made_is_refused_before_the_benchmark() {
    let folder = tempfile::tempdir().unwrap();
    let run = async |part: &str, file: &std::path::Path| {
        let mut command = bare_command(&["bench", "stability", "--only", part, "--plot"]);
        command.arg(file);
        Output::of(command).await
    };
    let plot = folder.path().join("plot.svg");
    let output = run("detection", &plot).await;
    assert_eq!(output.code, 2, "{output:?}");
    assert!(output.stderr.contains("--plot: this part of the benchmark cannot be drawn"), "{output:?}");
    assert!(!plot.exists());
    let nowhere = folder.path().join("missing/plot.svg");
    let output = run("setups", &nowhere).await;
    assert_eq!(output.code, 2, "{output:?}");
    assert!(output.stderr.contains("missing/plot.svg"), "{output:?}");
}
