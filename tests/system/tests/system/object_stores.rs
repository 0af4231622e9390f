//! Farms with their blobs in S3 or Azure, on machines that share no folder.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use farm::{Builder, Farm, ObjectServer, Output, SOON, bare_command};
use model::{BuildId, BuildKey, BuildRequest, Outcome, State};

use crate::check::{ended_as, ended_within, script, until};

/// Limits output on the bus; the rest of a log goes to the store.
const CONSOLE: (&str, &str) = ("FOREBAY_CONSOLE_BYTES_MAX", "50000");
/// Request timeout of the services, 30 s by default: they retry a request ten times.
const TIMEOUT: (&str, &str) = ("AWS_TIMEOUT", "1s");
/// How long a store does not answer: longer than all retries take.
const UNANSWERED: Duration = Duration::from_secs(20);
/// How long a store refuses connections: longer than all retries take.
const REFUSED: Duration = Duration::from_secs(12);
/// Time limit for `doctor`, which pauses for a random time between ten retries.
const EXAMINED: Duration = Duration::from_secs(90);
/// Time limit for a build to end after its store is back.
const BACK: Duration = Duration::from_secs(40);

/// Starts the worker and the executor on one machine and the other services on another one.
async fn on_two_machines(store: &ObjectServer, env: (&str, &str)) -> Farm {
    let first = Farm::builder().with_actions().without("worker").without("executor");
    let with = |builder: Builder, (name, value): (&'static str, String)| builder.env(name, value);
    let first = store.env().into_iter().fold(first, with);
    let farm = first.env("FOREBAY_CAS_URL", store.url()).env(env.0, env.1).start().await;
    let data = folder(&farm, "second");
    let second = [("FOREBAY_DATA", data.to_str().unwrap())];
    for service in ["worker", "executor"] {
        farm.keep(farm.spawn_with_env(service, &second).await);
    }
    farm
}

/// Creates the folder of a machine, readable by the user that actions run as.
fn folder(farm: &Farm, name: &str) -> PathBuf {
    let path = farm.folder().join(name);
    fs::create_dir_all(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A user on a third machine, who knows only the URL of the bus.
struct User<'a> {
    farm: &'a Farm,
}

impl User<'_> {
    async fn run(&self, args: &[&str]) -> Output {
        let home = folder(self.farm, "third");
        let nats = self.farm.servers.nats_url();
        let mut all = args.to_vec();
        all.splice(1..1, ["--nats", &nats]);
        let mut command = bare_command(&all);
        command.current_dir(&home).env("FOREBAY_DATA", home.join("data"));
        command.env("XDG_STATE_HOME", home.join("state"));
        Output::of(command).await
    }

    /// Runs a build in a copy of this folder to its end, and returns its id.
    async fn build_in(&self, project: &Path, rest: &[&str]) -> BuildId {
        let id = BuildId::generate();
        let text = id.to_string();
        let mut args = vec!["submit", "--follow", "--id", text.as_str(), "--dir", project.to_str().unwrap()];
        args.extend(rest);
        let output = self.run(&args).await;
        assert_eq!(output.code, 0, "{output:?}");
        id
    }

    /// Downloads an output of a build.
    async fn get(&self, id: BuildId, path: &str) -> String {
        let to = folder(self.farm, "third").join(path.replace('/', "_"));
        let output = self.run(&["get", &id.to_string(), "--output", path, to.to_str().unwrap()]).await;
        assert_eq!(output.code, 0, "{output:?}");
        fs::read_to_string(to).unwrap()
    }
}

/// Runs a build with a log that is too long for the bus, and a job.
async fn assert_builds_run(store: &ObjectServer) {
    let farm = on_two_machines(store, CONSOLE).await;
    let user = User { farm: &farm };
    let project = farm.folder().join("project");
    fs::create_dir_all(project.join("deep")).unwrap();
    fs::write(project.join("deep/in.txt"), "one\n").unwrap();

    let text = "cat deep/in.txt > out.txt; seq 40000";
    let build = user.build_in(&project, &["--output", "out.txt", "--", "sh", "-c", text]).await;
    assert_eq!(user.get(build, "out.txt").await, "one\n");
    let logs = user.run(&["logs", &build.to_string()]).await;
    assert!(logs.code == 0 && logs.stderr.is_empty(), "{}", logs.stderr);
    let log = logs.stdout;
    assert!(log.lines().map(|line| line.parse::<u32>().unwrap()).eq(1..=40_000), "{} bytes", log.len());

    let job = "
tasks:
  - id: upper
    command: [sh, -c, 'tr a-z A-Z < deep/in.txt > upper.txt']
    inputs: [deep/in.txt]
    outputs: [upper.txt]
  - id: twice
    command: [sh, -c, 'cat upper.txt upper.txt > twice.txt']
    inputs: [upper.txt]
    outputs: [twice.txt]
";
    let file = farm.folder().join("job.yaml");
    fs::write(&file, job).unwrap();
    let options = ["--job", file.to_str().unwrap(), "--output", "twice.txt"];
    let build = user.build_in(&project, &options).await;
    assert_eq!(user.get(build, "twice.txt").await, "ONE\nONE\n");
    let key: BuildKey = format!("default/{build}").parse().unwrap();
    let record = farm.client().get(&key).await.unwrap().record;
    let job = record.result().unwrap().job.as_deref().unwrap();
    assert_eq!((job.tasks, job.succeeded), (2, 2), "{record:#?}");
}

#[tokio::test]
async fn a_build_runs_with_its_blobs_on_s3() {
    assert_builds_run(&ObjectServer::s3().await).await;
}

#[tokio::test]
async fn a_build_runs_with_its_blobs_on_azure() {
    assert_builds_run(&ObjectServer::azure().await).await;
}

/// Starts a build that ends with an output as soon as the returned file exists.
pub(crate) async fn held_build(farm: &Farm) -> (BuildKey, PathBuf) {
    let (runs, go) = (farm.folder().join("runs"), farm.folder().join("go"));
    let text = format!(
        "touch {}; while [ ! -e {} ]; do sleep 0.05; done; echo kept > out.txt",
        runs.display(),
        go.display()
    );
    let request = BuildRequest { outputs: vec!["out.txt".to_owned()], ..script(&text) };
    let key = farm.submit("g", request).await;
    until("the build runs", SOON, || runs.exists()).await;
    (key, go)
}

/// Counts the places in the logs of services that name the store.
fn mentions(farm: &Farm, store: &ObjectServer) -> usize {
    let logs = fs::read_dir(farm.folder().join("logs")).unwrap().flatten();
    let text = |path: PathBuf| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
    logs.map(|log| names(&text(log.path()), store)).sum()
}

fn names(text: &str, store: &ObjectServer) -> usize {
    text.matches(&store.url()).count() + text.matches(&store.address()).count()
}

/// Waits while the store is away. The build has not ended then, and a log or `doctor` names the store.
async fn stays_away(farm: &Farm, key: &BuildKey, store: &ObjectServer, away: Duration) {
    let before = mentions(farm, store);
    let doctor = tokio::time::timeout(EXAMINED, farm.cli(&["doctor"]));
    let (doctor, ()) = tokio::join!(doctor, tokio::time::sleep(away));
    let record = farm.bus().records().latest(key).await.unwrap().unwrap().1;
    assert_ne!(record.state(), State::Finished, "{record:#?}");
    let doctor = doctor.map(|output| output.stdout).unwrap_or_default();
    let failed = doctor.lines().any(|line| line.starts_with("FAIL") && names(line, store) > 0);
    assert!(
        failed || mentions(farm, store) > before,
        "no log names {}, nor does doctor: {doctor}",
        store.url()
    );
}

/// The build ends once, even if it is requeued, and its output is readable.
async fn ends_with_its_output(farm: &Farm, key: &BuildKey) {
    let record = ended_within(farm, key, BACK).await;
    assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{record:#?}");
    assert_eq!(User { farm }.get(key.id, "out.txt").await, "kept\n");
}

#[tokio::test]
async fn a_store_that_is_away_for_a_minute_loses_nothing() {
    let store = ObjectServer::s3().await;
    let farm = on_two_machines(&store, TIMEOUT).await;
    let (key, go) = held_build(&farm).await;
    store.pause();
    fs::write(go, "").unwrap();
    stays_away(&farm, &key, &store, UNANSWERED).await;
    store.resume();
    ends_with_its_output(&farm, &key).await;
}

#[tokio::test]
async fn a_store_that_is_stopped_and_started_again_loses_nothing() {
    let store = ObjectServer::azure().await;
    let farm = on_two_machines(&store, CONSOLE).await;
    let (key, go) = held_build(&farm).await;
    store.stop().await;
    fs::write(go, "").unwrap();
    stays_away(&farm, &key, &store, REFUSED).await;
    store.start().await;
    ends_with_its_output(&farm, &key).await;
}

#[tokio::test]
async fn a_build_that_waits_for_its_folder_is_cancelled_at_once() {
    let store = ObjectServer::s3().await;
    let farm = on_two_machines(&store, ("FOREBAY_WORKSPACES", "1")).await;
    let (runs, go) = (farm.folder().join("runs"), farm.folder().join("go"));
    let text = format!("touch {}; while [ ! -e {} ]; do sleep 0.05; done", runs.display(), go.display());
    let first = farm.submit("g", script(&text)).await;
    until("the first build runs", SOON, || runs.exists()).await;
    // The folder is stored while the only workspace is in use, and read when the store is away.
    let project = folder(&farm, "project");
    fs::write(project.join("in.txt"), "one\n").unwrap();
    let key = BuildKey { group: "g".parse().unwrap(), id: BuildId::generate() };
    let id = key.id.to_string();
    let dir = project.to_str().unwrap();
    let submit = ["submit", "--group", "g", "--id", &id, "--dir", dir, "--", "cat", "in.txt"];
    let submitted = User { farm: &farm }.run(&submit).await;
    assert_eq!(submitted.code, 0, "{submitted:?}");
    store.pause();
    fs::write(go, "").unwrap();
    ended_as(&farm, &first, Outcome::Succeeded).await;
    farm.wait_until(&key, SOON, |record| record.state() == State::InProgress).await;
    tokio::time::sleep(Duration::from_secs(1)).await;

    farm.client().cancel(&key, None).await.unwrap();
    ended_as(&farm, &key, Outcome::Cancelled).await;
    let next = farm.submit("g", script("true")).await;
    ended_as(&farm, &next, Outcome::Succeeded).await;
    store.resume();
}
