//! Actions and tasks with services beside them.

use std::{collections::BTreeSet, fs};

use farm::{Builder, Farm, SOON};
use model::{BlobDigest, Outcome, TaskStatus};
use reapi::execution::{Action, ExecuteResponse, Platform, platform::Property};
use remote::{Remote, RemoteError};
use serde_json::{Value, json};
use tonic::Code;

use crate::{
    acting::{self, ACTING, SHA256, processes_with},
    check::until,
    images::{
        refusal,
        registry::{Registry, files, programs},
    },
    jobs,
};

/// A server on port 5432 that sends what it is started with, on all addresses or on that of a name, and the script of a client.
pub(crate) const SERVER: &str = "import socketserver, sys
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(sys.argv[1].encode())
socketserver.TCPServer.allow_reuse_address = True
print('serves', flush=True)
socketserver.TCPServer((sys.argv[2] if len(sys.argv) > 2 else '', 5432), Handler).serve_forever()";
pub(crate) const CLIENT: &str = "import socket, sys
print(socket.create_connection((sys.argv[1], 5432)).recv(100).decode(), end='')";

fn builder() -> Builder {
    Farm::builder().only(&ACTING)
}

/// A service that sends `text` to each client.
pub(crate) fn server(name: &str, text: &str) -> Value {
    let command = ["/usr/bin/python3", "-c", SERVER, text];
    json!({"name": name, "command": command, "ready": {"tcp": 5432}})
}

async fn asking(remote: &Remote, services: &Value, argv: &[&str]) -> BlobDigest {
    let property = Property { name: "forebay-services".to_owned(), value: services.to_string() };
    let action = Action { platform: Some(Platform { properties: vec![property] }), ..Action::default() };
    let mut command = acting::sh("");
    command.arguments = argv.iter().map(|&argument| argument.to_owned()).collect();
    acting::upload_as(remote, &command, action, &SHA256.empty()).await
}

async fn run(remote: &Remote, services: &Value, argv: &[&str]) -> Result<ExecuteResponse, RemoteError> {
    let action = asking(remote, services, argv).await;
    let ended = tokio::time::timeout(4 * SOON, remote.execute(&action, false, 0, |_, _| {})).await;
    ended.expect("the execution ends").map(|executed| executed.response)
}

async fn log(remote: &Remote, response: &ExecuteResponse, name: &str) -> Option<String> {
    let digest = response.server_logs.get(name)?.digest.as_ref()?;
    let digest = reapi::digest::from_proto(digest, SHA256).unwrap();
    Some(String::from_utf8(remote.read(&digest).await.unwrap()).unwrap())
}

#[tokio::test]
async fn an_action_reaches_its_services_and_what_they_write_is_kept() {
    let farm = builder().start().await;
    let remote = acting::remote(&farm).await;
    let mut database = server("db", "rows");
    database["aliases"] = json!(["database"]);
    for name in ["db", "database", "localhost"] {
        let client = ["/usr/bin/python3", "-c", CLIENT, name];
        let response = run(&remote, &json!([database]), &client).await.unwrap();
        assert_eq!(acting::stdout(&remote, &response).await, "rows");
        assert_eq!(log(&remote, &response, "db.stdout").await.as_deref(), Some("serves\n"));
        assert_eq!(log(&remote, &response, "db.stderr").await, None, "it wrote nothing");
    }
    // The next action on the same slot reaches no service, and no other network.
    let alone =
        ["/usr/bin/python3", "-c", "import socket; print(socket.socket().connect_ex(('127.0.0.1', 5432)))"];
    let response = run(&remote, &json!([]), &alone).await.unwrap();
    assert_eq!(acting::stdout(&remote, &response).await, "111\n");
}

#[tokio::test]
async fn any_name_is_as_good_as_another_and_limits_are_those_of_one_service() {
    let farm = builder().env("FOREBAY_ACTION_MEMORY_BYTES_MAX", "400000000").start().await;
    let remote = acting::remote(&farm).await;
    for name in ["hosts", "beside", "etc", "services", "a--check"] {
        let services = json!([
            {"name": name, "command": ["/bin/sleep", "100"], "limits": {"cpu_ms": 200}, "ready": {"command": ["true"]}},
            {"name": format!("{name}-check"), "command": ["/bin/sleep", "100"]},
        ]);
        // The time that the command uses is not that of the service.
        let busy = ["/bin/sh", "-c", "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done; echo done"];
        let response = run(&remote, &services, &busy).await.unwrap();
        assert_eq!(acting::stdout(&remote, &response).await, "done\n", "{name}");
    }
    let greedy =
        json!([{"name": "db", "command": ["/bin/sleep", "9"], "limits": {"memory_bytes": 500_000_000}}]);
    let (code, message) = refusal(run(&remote, &greedy, &["/bin/true"]).await);
    assert_eq!(code, Code::FailedPrecondition, "{message}");
    assert!(message.starts_with("the service db: "), "{message}");
}

#[tokio::test]
async fn many_services_have_the_same_port_at_once() {
    let farm = builder().env("FOREBAY_EXECUTOR_SLOTS", "8").start().await;
    let remote = acting::remote(&farm).await;
    let client = ["/usr/bin/python3", "-c", CLIENT, "db"];
    let one = async |number: usize| {
        let text = format!("rows {number}");
        let response = run(&remote, &json!([server("db", &text)]), &client).await.unwrap();
        assert_eq!(acting::stdout(&remote, &response).await, text);
    };
    futures::future::join_all((0..8).map(one)).await;
}

#[tokio::test]
async fn services_of_one_action_have_the_same_port_on_their_own_addresses() {
    let farm = builder().start().await;
    let remote = acting::remote(&farm).await;
    let on_own_address = |name: &str, listens: &str| {
        let mut service = server(name, &format!("rows of {name}"));
        service["command"].as_array_mut().unwrap().push(json!(listens));
        service
    };
    let services = json!([
        on_own_address("one", "one"),
        on_own_address("two", "localhost"),
        on_own_address("three", "three"),
    ]);
    let names = ["one", "two", "three"];
    for name in names {
        let client = ["/usr/bin/python3", "-c", CLIENT, name];
        let response = run(&remote, &services, &client).await.unwrap();
        assert_eq!(acting::stdout(&remote, &response).await, format!("rows of {name}"));
    }
    // One that listens on all addresses is found by its name, too.
    let services = json!([{"name": "idle", "command": ["/bin/sleep", "100"]}, server("db", "all")]);
    let response = run(&remote, &services, &["/usr/bin/python3", "-c", CLIENT, "db"]).await.unwrap();
    assert_eq!(acting::stdout(&remote, &response).await, "all");
}

#[tokio::test]
async fn a_command_that_fails_after_its_service_has_the_reason_and_its_output() {
    let farm = builder().start().await;
    let remote = acting::remote(&farm).await;
    // It ends as soon as it was asked once, and the client fails when it asks again.
    let once = SERVER.replace("serve_forever()", "handle_request(); import os; os._exit(0)");
    let services = json!([{"name": "db", "command": ["/usr/bin/python3", "-c", once, "last"],
        "ready": {"command": ["true"]}, "stop_seconds": 0}]);
    let twice = format!(
        "import time
while True:
    try:
        exec({CLIENT:?}); break
    except OSError: time.sleep(0.02)
exec({CLIENT:?})"
    );
    let response = run(&remote, &services, &["/usr/bin/python3", "-c", &twice, "db"]).await.unwrap();
    let status = response.status.clone().unwrap();
    assert_eq!(Code::from_i32(status.code), Code::FailedPrecondition, "{status:?}");
    assert!(status.message.contains("the service db ended with exit code 0"), "{status:?}");
}

#[tokio::test]
async fn exec_says_where_the_logs_of_services_are() {
    let farm = builder().start().await;
    let services =
        json!([{"name": "db", "command": ["/bin/sh", "-c", "echo no room >&2; exit 7"]}]).to_string();
    let platform = format!("forebay-services={services}");
    let failed = farm
        .cli(&["exec", "--grpc", &farm.grpc_url(), "--platform", &platform, "--", "/bin/sleep", "100"])
        .await;
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(failed.stderr.contains("the service db ended with exit code 7"), "{failed:?}");
    let line = failed.stderr.lines().find(|line| line.contains("log of a service, db.stderr: ")).unwrap();
    let digest = line.rsplit(' ').next().unwrap();
    let log = farm.cli(&["cas", "--grpc", &farm.grpc_url(), "get", digest]).await;
    assert_eq!(log.stdout, "no room\n", "{log:?}");
}

#[tokio::test]
async fn what_is_wrong_with_a_service_is_said_with_what_it_wrote() {
    let farm = builder().start().await;
    let remote = acting::remote(&farm).await;
    let script = |script: &str| json!({"name": "db", "command": ["/bin/sh", "-c", script]});
    let ready = |mut service: Value, ready: Value, seconds: u32| {
        service["ready"] = ready;
        service["ready_seconds"] = seconds.into();
        json!([service])
    };
    let port = json!({"tcp": 5432});
    let wait = ["/bin/sleep", "100"];
    for (services, code, expected) in [
        (json!("db"), Code::InvalidArgument, "expected services as JSON"),
        (json!([{"name": "db"}]), Code::InvalidArgument, "neither a command nor an image"),
        (
            json!([{"name": "db", "environment": "pg"}]),
            Code::FailedPrecondition,
            "environment pg, which is unknown",
        ),
        (
            ready(script("echo no room >&2; exit 7"), port.clone(), 60),
            Code::FailedPrecondition,
            "the service db ended with exit code 7; it wrote: no room",
        ),
        (
            ready(script("echo waits; sleep 100"), port, 1),
            Code::FailedPrecondition,
            "was not ready within 1 s: it counts as ready when it accepts connections on port 5432 of 127.0.0.1; it wrote: waits",
        ),
        // It dies while the command runs, which would run for long.
        (
            json!([script("sleep 0.3; exit 9")]),
            Code::FailedPrecondition,
            "the service db ended with exit code 9",
        ),
        (
            json!([{"name": "db", "command": ["/no/server"]}]),
            Code::FailedPrecondition,
            "db cannot be started",
        ),
    ] {
        let (found, message) = refusal(run(&remote, &services, &wait).await);
        assert_eq!(found, code, "{services}: {message}");
        assert!(message.contains(expected), "{services}: {message}");
    }
    let plain = Farm::builder().only(&ACTING).env("FOREBAY_SANDBOX", "none").start().await;
    let remote = acting::remote(&plain).await;
    let (code, message) = refusal(run(&remote, &json!([server("db", "x")]), &wait).await);
    assert_eq!(code, Code::FailedPrecondition, "{message}");
    assert!(message.contains("an executor runs actions with services if"), "{message}");
}

/// The network namespaces of the processes with this text on their command lines.
pub(crate) fn networks_of(text: &str) -> BTreeSet<std::path::PathBuf> {
    let of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    processes_with(text).into_iter().filter_map(of).collect()
}

pub(crate) fn all_networks() -> BTreeSet<std::path::PathBuf> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| fs::read_link(entry.path().join("ns/net")).ok()).collect()
}

/// Rounds of a test that kills executors; 20 in the long form of the chaos tests.
pub(crate) fn rounds() -> u32 {
    if std::env::var_os("FOREBAY_CHAOS").is_some_and(|form| form == "long") { 20 } else { 3 }
}

#[tokio::test]
async fn chaos_a_killed_executor_leaves_nothing_of_its_services() {
    let farm = builder().start().await;
    let remote = acting::remote(&farm).await;
    for round in 0..rounds() {
        let marker = acting::own(&format!("88{round}77.5"));
        let services = json!([
            {"name": "one", "command": ["/bin/sh", "-c", format!("trap '' TERM; sleep {marker} & sleep {marker}")]},
            {"name": "two", "command": ["/bin/sleep", marker], "after": ["one"]},
        ]);
        let action = asking(&remote, &services, &["/bin/sleep", &marker]).await;
        let running = acting::execute(&remote, action);
        // Two of the first service, one of the second, and the command.
        until("all run", SOON, || processes_with(&format!("sleep\0{marker}")).len() >= 4).await;
        let networks = networks_of(&format!("sleep\0{marker}"));
        assert_eq!(networks.len(), 1, "they share a network");
        let mut executor = farm.take("executor");
        executor.kill9();
        executor.wait_exit(SOON).await;
        until("its processes are dead", SOON, || processes_with(&marker).is_empty()).await;
        until("its network is gone", SOON, || all_networks().is_disjoint(&networks)).await;
        running.abort();
        farm.keep(farm.spawn("executor").await);
        let left = || {
            fs::read_dir(farm.data().join("executor/0/slots"))
                .is_ok_and(|slots| slots.flatten().all(|slot| !slot.path().join("services").exists()))
        };
        until("its files are gone", SOON, left).await;
    }
}

#[tokio::test]
async fn a_service_runs_in_the_image_that_it_names() {
    let registry = Registry::start().await;
    let base = programs(&["/bin/sh", "/bin/cat", "/bin/sleep"]);
    let config = json!({
        "Env": ["GREETING=from the image"],
        "Entrypoint": ["/bin/sh", "-c"],
        "Cmd": ["echo $GREETING; echo yes > up; exec /bin/sleep 1000"],
    });
    let push =
        |version: &str| registry.push("db:1", &[base.clone(), files(&[("version", version)])], &config);
    push("one");
    let environments = json!({"db": registry.image("db:1")});
    let farm = builder()
        .env("FOREBAY_REGISTRIES", registry.setting())
        .env("FOREBAY_IMAGE_TAG_SECONDS", "0")
        .env("FOREBAY_ENVIRONMENTS", environments.to_string())
        .start()
        .await;
    let remote = acting::remote(&farm).await;
    let ready = json!({"command": ["/bin/cat", "up"]});
    let by_tag = json!([{"name": "db", "image": registry.image("db:1"), "ready": ready}]);
    let by_name = json!([{"name": "db", "environment": "db", "ready": ready}]);
    let done = ["/bin/echo", "done"];
    for services in [&by_tag, &by_name] {
        let response = run(&remote, services, &done).await.unwrap();
        assert_eq!(acting::stdout(&remote, &response).await, "done\n");
        if !response.cached_result {
            assert_eq!(log(&remote, &response, "db.stdout").await.as_deref(), Some("from the image\n"));
        }
    }
    assert!(run(&remote, &by_tag, &done).await.unwrap().cached_result);
    // Under a tag that moved it is another action.
    push("two");
    assert!(!run(&remote, &by_tag, &done).await.unwrap().cached_result);
}

#[tokio::test]
async fn a_task_of_a_job_has_services_with_its_own_files() {
    let farm = jobs::start(Farm::builder().with_actions().workspaces(1)).await;
    let tasks = json!([
        {"id": "server", "command": ["/bin/sh", "-c", format!("cat > server.py <<'END'\n{SERVER}\nEND")],
         "outputs": ["server.py"]},
        {"id": "test", "command": ["/usr/bin/python3", "-c", CLIENT, "app"], "inputs": ["server.py"],
         "services": [{"name": "app", "command": ["/usr/bin/python3", "server.py", "built here"],
                       "ready": {"tcp": 5432}}]},
        {"id": "broken", "command": ["/bin/true"], "cache": false,
         "services": [{"name": "app", "command": ["/bin/sh", "-c", "echo cannot bind >&2; exit 1"],
                       "ready": {"tcp": 5432}}]},
    ]);
    let ended = jobs::run(&farm, jobs::request(jobs::job(&tasks))).await;
    assert_eq!(ended.outcome(), Outcome::Failed);
    assert_eq!(ended.task("test").status, TaskStatus::Succeeded, "{:#?}", ended.reports);
    let logs: Vec<&str> = ended.task("test").service_logs.keys().map(String::as_str).collect();
    assert_eq!(logs, ["app.stdout"]);
    let broken = ended.task("broken");
    assert_eq!(broken.status, TaskStatus::Failed);
    let reason = broken.reason.as_deref().unwrap();
    assert!(reason.contains("the service app ended with exit code 1; it wrote: cannot bind"), "{reason}");
    assert!(broken.service_logs.contains_key("app.stderr"), "{broken:#?}");
    let shown = farm.cli(&["get", &ended.record.build.key().to_string()]).await.stdout;
    let place = format!("app.stderr (forebay cas get {})", broken.service_logs["app.stderr"]);
    assert!(shown.contains(&place), "{shown}");
}
