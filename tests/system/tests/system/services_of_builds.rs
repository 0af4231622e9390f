//! Builds with services beside their command.

use std::{collections::BTreeSet, fs, path::PathBuf};

use farm::{Builder, Farm, SOON};
use model::{
    Attempt, BuildKey, BuildLimits, BuildRecord, BuildRequest, Context, Outcome, ReasonCode, ServiceRequest,
    WorkspaceUse,
};
use serde_json::{Value, json};

use crate::{
    acting::{own, processes_with},
    check::{ended_as, request, script, until},
    images::registry::{Registry, files, programs},
    jobs,
    services::{CLIENT, SERVER, all_networks, networks_of, rounds, server},
};

fn builder() -> Builder {
    Farm::builder().without("gateway").workspaces(1)
}

fn services(all: &Value) -> Vec<ServiceRequest> {
    serde_json::from_value(all.clone()).unwrap()
}

/// A build that asks a service what it sends.
fn asking(all: &Value, name: &str) -> BuildRequest {
    BuildRequest { services: services(all), ..request(&["/usr/bin/python3", "-c", CLIENT, name]) }
}

async fn said(farm: &Farm, request: BuildRequest) -> (BuildRecord, String) {
    let key = farm.submit("g", request).await;
    let record = ended_as(farm, &key, Outcome::Succeeded).await;
    let log = farm.cli(&["logs", &key.to_string()]).await;
    assert_eq!(log.code, 0, "{log:?}");
    (record, log.stdout)
}

/// What a service wrote, as an output of its build.
async fn log(farm: &Farm, record: &BuildRecord, name: &str) -> Option<String> {
    let path = format!(".forebay/services/{name}");
    let file = record.result()?.outputs.iter().find(|file| file.path == path)?;
    Some(jobs::content(farm, &file.digest).await)
}

/// A folder that the farm may copy, with one file.
fn folder_with(farm: &Farm, name: &str, content: &str) -> Context {
    let folder = farm.folder().join("source");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(name), content).unwrap();
    Context::Directory { path: folder.to_str().unwrap().to_owned(), ignore_files: false }
}

#[tokio::test]
async fn a_build_reaches_its_services_and_what_they_write_is_kept() {
    let farm = builder().start().await;
    let greedy = format!("held = b'x' * (100 << 20)\n{SERVER}");
    let all = json!([{
        "name": "db", "command": ["/usr/bin/python3", "-c", greedy, "rows", "db"], "ready": {"tcp": 5432},
    }, {
        "name": "app", "aliases": ["web"], "after": ["db"], "ready": {"tcp": 5432},
        "command": ["/usr/bin/python3", "-c", SERVER, "pages", "app"],
    }]);
    for (name, text) in [("db", "rows"), ("app", "pages"), ("web", "pages")] {
        let (record, said) = said(&farm, asking(&all, name)).await;
        assert_eq!(said, text);
        assert_eq!(log(&farm, &record, "db.stdout").await.as_deref(), Some("serves\n"));
        assert_eq!(log(&farm, &record, "db.stderr").await, None, "it wrote nothing");
        let result = record.result().unwrap();
        assert!(result.peak_memory_bytes > 100 << 20, "the services count for the build: {result:?}");
    }
    // The next build in the same workspace has neither the services nor their names, and left nothing.
    let (_, after) = said(&farm, script("grep -cw db /etc/hosts; ls -A; ls -A ..")).await;
    assert_eq!(after.lines().next(), Some("0"), "{after}");
    assert!(!after.contains("services"), "{after}");
}

#[tokio::test]
async fn services_see_a_copy_of_the_workspace_and_the_network_reaches_only_them() {
    let farm = builder().start().await;
    let outside = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = outside.local_addr().unwrap().port();
    let service = "cat data >&2; echo changed > data; touch ready; exec sleep 1000";
    let all = json!([{
        "name": "db", "command": ["/bin/sh", "-c", service], "ready": {"command": ["test", "-e", "ready"]},
    }]);
    let command = format!(
        "cat data; echo; ls ready 2>/dev/null; \
         python3 -c 'import socket; print(socket.socket().connect_ex((\"127.0.0.1\", {port})))'"
    );
    for workspace in [WorkspaceUse::Fresh, WorkspaceUse::Warm, WorkspaceUse::Warm] {
        let request = BuildRequest {
            services: services(&all),
            context: folder_with(&farm, "data", "given"),
            workspace: Some(workspace),
            ..script(&command)
        };
        let (record, said) = said(&farm, request).await;
        assert_eq!(said, "given\n111\n");
        assert_eq!(log(&farm, &record, "db.stderr").await.as_deref(), Some("given"));
    }
}

/// The failure of a build because of a service.
async fn failed(farm: &Farm, request: BuildRequest) -> (BuildKey, BuildRecord, String) {
    let key = farm.submit("g", request).await;
    let record = ended_as(farm, &key, Outcome::Failed).await;
    let reason = record.result().unwrap().reason.clone().unwrap();
    assert_eq!(reason.code, ReasonCode::ServiceFailed, "{reason:?}");
    assert_eq!(record.attempt, Attempt::FIRST, "another run would find the same");
    (key, record, reason.message)
}

#[tokio::test]
async fn a_build_whose_service_fails_says_so_and_where_its_logs_are() {
    let farm = Farm::builder().workspaces(1).start().await;
    let sh = |text: &str, ready: Value| {
        services(
            &json!([{"name": "db", "command": ["/bin/sh", "-c", text], "ready": ready, "ready_seconds": 1}]),
        )
    };
    let (port, started) = (json!({"tcp": 5432}), json!(null));
    for (all, command, expected) in [
        (
            sh("echo no room >&2; exit 7", port.clone()),
            "true",
            "the service db ended with exit code 7; it wrote: no room",
        ),
        (sh("echo waits; sleep 100", port), "true", "the service db was not ready within 1 s"),
        // It dies while the command runs, which would run for long.
        (sh("sleep 0.3; exit 9", started), "sleep 1000", "the service db ended with exit code 9"),
    ] {
        let request = BuildRequest { services: all, ..script(command) };
        let (_, _, message) = failed(&farm, request).await;
        assert!(message.contains(expected), "{message}");
    }
    let broken = sh("echo cannot bind >&2; exit 1", json!({"tcp": 1}));
    let (key, record, _) = failed(&farm, BuildRequest { services: broken, ..script("true") }).await;
    assert_eq!(log(&farm, &record, "db.stderr").await.as_deref(), Some("cannot bind\n"));
    let shown = farm.cli(&["get", &key.to_string()]).await.stdout;
    let place = format!("forebay get {key} --output .forebay/services/db.stderr -");
    assert!(shown.contains(&place) && shown.contains("service    db: "), "{shown}");
    let read = farm.cli(&["get", &key.to_string(), "--output", ".forebay/services/db.stderr", "-"]).await;
    assert_eq!(read.stdout, "cannot bind\n", "{read:?}");
}

#[tokio::test]
async fn a_command_that_fails_after_its_service_is_not_blamed_and_keeps_its_outputs() {
    let farm = builder().start().await;
    // It ends as soon as it was asked once.
    let once = SERVER.replace("serve_forever()", "handle_request()");
    let all = json!([{"name": "db", "command": ["/usr/bin/python3", "-c", once, "last"], "ready": {"command": ["true"]}}]);
    let client = format!(
        "echo tested > report; until python3 -c '{}' db; do sleep 0.05; done; \
         python3 -c '{}' db || exit 5; sleep 1000",
        CLIENT.replace('\'', "\""),
        CLIENT.replace('\'', "\"")
    );
    let request =
        BuildRequest { services: services(&all), outputs: vec!["report".to_owned()], ..script(&client) };
    let (_, record, message) = failed(&farm, request).await;
    assert!(message.contains("the service db ended with exit code 0"), "{message}");
    let kept: Vec<&str> = record.result().unwrap().outputs.iter().map(|file| file.path.as_str()).collect();
    assert!(kept.contains(&"report"), "{kept:?}");
}

#[tokio::test]
async fn the_limit_that_a_service_exceeds_names_the_service() {
    let farm = builder().start().await;
    let service = |text: &str, limits: Value| {
        services(&json!([{"name": "db", "command": ["/bin/sh", "-c", text], "limits": limits}]))
    };
    let disk = "head -c 30000000 /dev/zero > file; exec sleep 1000";
    let busy = "while :; do :; done";
    let large = "exec python3 -c 'held = b\"x\" * (200 << 20); import time; time.sleep(1000)'";
    let most = BuildLimits { disk_bytes: Some(10_000_000), ..BuildLimits::default() };
    for (all, limits, expected) in [
        (service(disk, json!({"disk_bytes": 1_000_000})), BuildLimits::default(), "of 1000000 bytes of disk"),
        // The limit of the build is that of each service, too.
        (service(disk, json!({})), most, "of 10000000 bytes of disk"),
        (
            service(large, json!({"memory_bytes": 60_000_000})),
            BuildLimits::default(),
            "of 60000000 bytes of memory",
        ),
        (service(busy, json!({"cpu_ms": 200})), BuildLimits::default(), "of 200 ms of processor time"),
    ] {
        let request = BuildRequest { services: all, limits, ..script("sleep 1000") };
        let (_, _, message) = failed(&farm, request).await;
        assert!(message.starts_with("the service db was killed because it used "), "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

#[tokio::test]
async fn what_no_worker_can_run_is_refused_at_once() {
    let all = services(&json!([{"name": "db", "command": ["true"]}]));
    let farm = builder().env("FOREBAY_IMAGES", "false").start().await;
    let refused = async |farm: &Farm, request: &BuildRequest| {
        farm.client().create(&"g".parse().unwrap(), request, None).await.unwrap_err().to_string()
    };
    let in_image = services(&json!([{"name": "db", "image": "docker://a.example/db:1"}]));
    let error = refused(&farm, &BuildRequest { services: in_image, ..script("true") }).await;
    assert!(error.contains("no worker has offered the property images"), "{error}");
    let twice = services(&json!([{"name": "db", "command": ["true"]}, {"name": "db", "command": ["true"]}]));
    let error = refused(&farm, &BuildRequest { services: twice, ..script("true") }).await;
    assert!(error.contains("field services: the name db is used twice"), "{error}");
    let job = jobs::request(jobs::job(&json!([jobs::sh("a", "true")])));
    let error = refused(&farm, &BuildRequest { services: all.clone(), ..job }).await;
    assert!(error.contains("set services in the tasks of the job"), "{error}");
    let plain = builder().env("PATH", "/nowhere").start().await;
    let error = refused(&plain, &BuildRequest { services: all, ..script("true") }).await;
    assert!(error.contains("no worker has offered the property services"), "{error}");
    assert!(error.contains("workers run builds with services on machines"), "{error}");
}

/// Runs two services and a build with this marker on their command lines; returns its network.
async fn run_marked(farm: &Farm, marker: &str) -> (BuildKey, BTreeSet<PathBuf>) {
    let all = json!([
        {"name": "one", "command": ["/bin/sh", "-c", format!("trap '' TERM; sleep {marker} & sleep {marker}")]},
        {"name": "two", "command": ["/bin/sleep", marker], "after": ["one"]},
    ]);
    let request = BuildRequest { services: services(&all), ..request(&["/bin/sleep", marker]) };
    let key = farm.submit("g", request).await;
    let sleeps = format!("sleep\0{marker}");
    until("all run", SOON, || processes_with(&sleeps).len() >= 4).await;
    let networks = networks_of(&sleeps);
    assert_eq!(networks.len(), 1, "they share a network");
    (key, networks)
}

async fn are_gone(marker: &str, networks: &BTreeSet<PathBuf>) {
    until("its processes are dead", SOON, || processes_with(marker).is_empty()).await;
    until("its network is gone", SOON, || all_networks().is_disjoint(networks)).await;
}

#[tokio::test]
async fn chaos_a_killed_worker_leaves_nothing_of_the_services_of_a_build() {
    let farm = builder().start().await;
    for round in 0..rounds() {
        let marker = own(&format!("66{round}55.5"));
        let (key, networks) = run_marked(&farm, &marker).await;
        let mut worker = farm.take("worker");
        worker.kill9();
        worker.wait_exit(SOON).await;
        are_gone(&marker, &networks).await;
        let cancelled = farm.cli(&["cancel", &key.to_string()]).await;
        assert_eq!(cancelled.code, 0, "{cancelled:?}");
        farm.keep(farm.spawn("worker").await);
    }
    // The workspaces of the dead ones are removed, and the next build has all that it needs.
    let (_, said) = said(&farm, asking(&json!([server("db", "rows")]), "db")).await;
    assert_eq!(said, "rows");
}

#[tokio::test]
async fn services_end_with_a_build_that_is_cancelled_and_with_the_lease_of_a_frozen_worker() {
    let farm = builder().lease_ttl(2).start().await;
    let (cancelled_with, frozen_with) = (own("66177.5"), own("66188.5"));
    let (key, networks) = run_marked(&farm, &cancelled_with).await;
    let cancelled = farm.cli(&["cancel", &key.to_string()]).await;
    assert_eq!(cancelled.code, 0, "{cancelled:?}");
    are_gone(&cancelled_with, &networks).await;
    let (_, _) = run_marked(&farm, &frozen_with).await;
    let worker = farm.take("worker");
    worker.pause();
    until("its processes are dead", SOON, || processes_with(&frozen_with).is_empty()).await;
    worker.resume();
    farm.keep(worker);
}

#[tokio::test]
async fn a_service_of_a_build_runs_in_the_image_that_it_names() {
    let registry = Registry::start().await;
    let base = programs(&["/bin/sh", "/bin/cat", "/bin/sleep"]);
    let config = json!({
        "Env": ["GREETING=from the image"],
        "Entrypoint": ["/bin/sh", "-c"],
        "Cmd": ["echo $GREETING; cat /etc/version; echo yes > up; exec /bin/sleep 1000"],
    });
    registry.push("db:1", &[base, files(&[("etc/version", "one")])], &config);
    let environments = json!({"db": registry.image("db:1"), "h/own": registry.image("db:1")});
    let farm = builder()
        .env("FOREBAY_REGISTRIES", registry.setting())
        .env("FOREBAY_ENVIRONMENTS", environments.to_string())
        .start()
        .await;
    let ready = json!({"command": ["/bin/cat", "up"]});
    let of = |image: Value| {
        let mut service = json!({"name": "db", "ready": ready});
        service.as_object_mut().unwrap().extend(image.as_object().unwrap().clone());
        BuildRequest { services: services(&json!([service])), ..script("[ -e /etc/passwd ] && echo machine") }
    };
    for image in [json!({"image": registry.image("db:1")}), json!({"environment": "db"})] {
        let (record, said) = said(&farm, of(image)).await;
        assert_eq!(said, "machine\n", "only the service is in the image");
        assert_eq!(log(&farm, &record, "db.stdout").await.as_deref(), Some("from the image\none"));
    }
    let key = farm.submit("g", of(json!({"image": registry.image("missing:1")}))).await;
    let record = ended_as(&farm, &key, Outcome::Failed).await;
    let reason = record.result().unwrap().reason.clone().unwrap();
    assert!(reason.message.contains("does not have manifests/1"), "{reason:?}");
    // It is another group's.
    let request = of(json!({"environment": "own"}));
    let refused = farm.client().create(&"g".parse().unwrap(), &request, None).await;
    assert!(refused.unwrap_err().to_string().contains("environment own, which is unknown"));
}

#[tokio::test]
async fn the_services_of_a_build_are_submitted_from_a_file() {
    let farm = builder().start().await;
    let file = farm.folder().join("services.yaml");
    fs::write(&file, format!("# a list\n- {}\n", server("db", "rows"))).unwrap();
    let file = file.to_str().unwrap();
    let call = ["submit", "--follow", "--services", file, "--", "/usr/bin/python3", "-c", CLIENT, "db"];
    let done = farm.cli(&call).await;
    assert_eq!((done.code, done.stdout.as_str()), (0, "rows"), "{done:?}");
}
