//! A bus belongs to one farm: services with other stores are refused, and services that come and
//! go leave nothing behind.

use std::path::{Path, PathBuf};

use farm::{Farm, Guard, Output, Process, SOON, Up, bare_command};
use model::{BuildId, BuildKey, Endpoints, FarmRecord, StoreId};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use service::host_name;
use tempfile::TempDir;

use crate::{
    check::until,
    jobs::{job, request, sh},
};

/// A farm that `forebay up` runs, and a folder for services that join it.
struct Home {
    up: Up,
    endpoints: Endpoints,
    guard: Guard,
    folder: TempDir,
}

impl Home {
    async fn new() -> Self {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let folder = tempfile::Builder::new().prefix("forebay-test-").permissions(open).tempdir().unwrap();
        let guard = Guard::start(folder.path());
        let env = [("FOREBAY_SANDBOX", "none")];
        let mut up = Up::start(folder.path(), &guard, &["--workspaces", "1"], &env).await;
        let endpoints = up.endpoints().await;
        Self { up, endpoints, guard, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Prepares `forebay COMMAND` on this farm's servers, with a separate data folder.
    fn command(&self, command: &str, data: &Path, rest: &[&str]) -> tokio::process::Command {
        let data = data.to_str().unwrap();
        let servers = ["--nats", &self.endpoints.nats, "--redis", &self.endpoints.redis, "--data", data];
        bare_command(&[&[command], rest, &servers[..]].concat())
    }

    fn second_up(&self, rest: &[&str]) -> tokio::process::Command {
        let free = ["--http-port", "0", "--grpc-port", "0"];
        self.command("up", &self.path("second"), &[&free[..], rest].concat())
    }

    /// Kills a child of `up` and waits until it is back.
    async fn restart(&self, name: &str) {
        let pid = self.up.children()[name];
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
        let listening = self.up.data().join("run").join(format!("{name}.json"));
        let ready = || {
            let text = std::fs::read(&listening).unwrap_or_default();
            let told: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
            told["pid"].as_u64().is_some_and(|now| now != u64::from(pid))
        };
        until(name, SOON, ready).await;
    }

    /// URL of the farm's store.
    async fn store_url(&mut self) -> String {
        let client = self.up.client().await;
        let (_, record) = client.bus().buckets().get::<FarmRecord>(&()).await.unwrap();
        record.unwrap().cas.unwrap().url
    }

    async fn gateways(&mut self) -> Vec<String> {
        let client = self.up.client().await;
        let found = client.bus().gateways().all(&host_name()).await.unwrap();
        found.into_iter().map(|address| address.grpc).collect()
    }

    /// Asserts that builds with an output, and a job with a command, succeed.
    async fn works(&mut self) {
        let id = BuildId::generate().to_string();
        let submit = ["submit", "--follow", "--id", &id, "--output", "x", "--", "sh", "-c", "echo kept > x"];
        let output = self.up.cli(&submit).await;
        assert_eq!(output.code, 0, "{output:?}");
        let output = self.up.cli(&["get", &id, "--output", "x", "-"]).await;
        assert_eq!(output.stdout, "kept\n", "{output:?}");
        let client = self.up.client().await;
        let job = request(job(&json!([sh("only", "echo hello")])));
        let reply = client.create(&"g".parse().unwrap(), &job, None).await.unwrap();
        let key = BuildKey { group: reply.group, id: reply.id };
        let output = self.up.cli(&["watch", &key.to_string()]).await;
        assert_eq!(output.code, 0, "{output:?}");
    }
}

#[tokio::test]
async fn a_second_up_with_a_store_of_its_own_is_refused_and_changes_nothing() {
    let mut home = Home::new().await;
    let refused = Output::of(home.second_up(&[])).await;
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("does not belong to this farm"), "{refused:?}");
    for known in [home.endpoints.store.as_str(), "FOREBAY_CAS_URL=grpc://"] {
        assert!(refused.stderr.contains(known), "{refused:?}");
    }
    // A single service with a store of its own is refused too.
    let own = home.path("third/cas");
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(own.join("store-id"), StoreId::generate().to_string()).unwrap();
    for service in ["executor", "worker"] {
        let mut command = home.command("serve", &home.path("third"), &[service]);
        command.env("FOREBAY_METRICS_LISTEN", "127.0.0.1:0").env("FOREBAY_SANDBOX", "none");
        let refused = Output::of(command).await;
        assert!(refused.code == 2 && refused.stderr.contains("--store"), "{service}: {refused:?}");
    }
    // Restarted services find their data.
    for name in ["worker", "gateway", "enqueuer"] {
        home.restart(name).await;
    }
    home.works().await;
}

#[tokio::test]
async fn a_service_with_the_gateway_of_another_farm_is_refused() {
    let (home, other) = tokio::join!(Home::new(), Home::new());
    let grpc = other.endpoints.grpc.as_ref().unwrap();
    let mut command = home.command("serve", &home.path("second"), &["worker"]);
    command.env("FOREBAY_METRICS_LISTEN", "127.0.0.1:0").env("FOREBAY_CAS_URL", grpc);
    let refused = Output::of(command).await;
    assert!(refused.code == 2 && refused.stderr.contains("does not belong to this farm"), "{refused:?}");
}

#[tokio::test]
async fn an_up_that_joins_adds_capacity_and_takes_its_address_with_it() {
    let mut home = Home::new().await;
    let grpc = home.endpoints.grpc.clone().unwrap();
    assert_eq!(home.gateways().await, std::slice::from_ref(&grpc));
    let mut command = home.second_up(&[]);
    command.env("FOREBAY_CAS_URL", &grpc).env("FOREBAY_SANDBOX", "none");
    let mut second = Process::start("second", command, &home.path("second.log"), &home.guard);
    let written = home.path("second/endpoints.json");
    until("the second is up", SOON, || written.exists()).await;
    let both = home.gateways().await;
    assert!(both.len() == 2 && both.contains(&grpc), "{both:?}");
    let doctor = home.up.cli(&["doctor"]).await;
    assert!(both.iter().all(|address| doctor.stdout.contains(address.as_str())), "{doctor:?}");
    second.term();
    second.wait_exit(SOON).await;
    assert_eq!(home.gateways().await, [grpc]);
    home.restart("worker").await;
    home.works().await;
}

#[tokio::test]
async fn a_service_joins_the_farm_of_its_data_folder() {
    let home = Home::new().await;
    let data = home.up.data().to_str().unwrap();
    // The farm's own executor occupies the folder's place for executors: a worker beside it is equivalent.
    let mut command = bare_command(&["serve", "worker", "--workspaces", "3", "--data", data]);
    command.env("FOREBAY_METRICS_LISTEN", "127.0.0.1:0");
    let _worker = Process::start("worker", command, &home.path("worker.log"), &home.guard);
    let joined = async {
        loop {
            let output = home.up.cli(&["workers", "--json"]).await;
            let workers: Vec<serde_json::Value> = serde_json::from_str(&output.stdout).unwrap();
            if workers.len() == 2 {
                return;
            }
        }
    };
    tokio::time::timeout(SOON, joined).await.unwrap();
}

#[tokio::test]
async fn stores_are_taken_over_only_when_that_is_said() {
    let mut home = Home::new().await;
    let before = home.store_url().await;
    let args = ["--take-over", "--no-services"];
    let mut second = Process::start("second", home.second_up(&args), &home.path("second.log"), &home.guard);
    let written = home.path("second/endpoints.json");
    until("the second is up", SOON, || written.exists()).await;
    let after = home.store_url().await;
    assert_eq!(before, home.endpoints.store);
    assert!(after.ends_with("/second/cas"), "{after}");
    second.term();
    second.wait_exit(SOON).await;
    // The first farm's services and its `up` are refused from now on, until it takes over its bus again.
    let worker = home.command("serve", home.up.data(), &["worker"]);
    let refused = Output::of(worker).await;
    assert!(refused.code == 2 && refused.stderr.contains(&after), "{refused:?}");
}

#[tokio::test]
async fn a_job_says_that_no_gateway_answers() {
    let farm = Farm::builder()
        .with_actions()
        .without("gateway")
        .workspaces(1)
        .env("FOREBAY_SANDBOX", "none")
        .start()
        .await;
    let key = farm.submit("g", request(job(&json!([sh("only", "echo hello")])))).await;
    let watch = async {
        loop {
            let events = farm.stored(&key).await;
            let said = "no gateway of the farm answers";
            if events.iter().any(|event| String::from_utf8_lossy(&event.payload).contains(said)) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, watch).await.unwrap();
    farm.keep(farm.spawn("gateway").await);
    let record = crate::check::ended_within(&farm, &key, crate::jobs::LONG).await;
    assert_eq!(record.result().unwrap().outcome, model::Outcome::Succeeded, "{record:#?}");
}
