//! Forebay's own services as children: this executable with `serve NAME`.

use std::{collections::BTreeMap, fs, io, path::PathBuf, time::Duration};

use model::Endpoints;
use serde::Deserialize;
use serde_json::Value;
use settings::Settings;

use super::{UpError, child::Spec, folder::Folder, ports, watchdog};

/// The HTTP API.
pub(super) const GATEWAY: &str = "gateway";
/// Takes builds in.
pub(super) const ENQUEUER: &str = "enqueuer";
/// Hands builds out.
pub(super) const DISPATCHER: &str = "dispatcher";
/// Ends what others left.
pub(super) const REAPER: &str = "reaper";
/// Hands actions out.
pub(super) const SCHEDULER: &str = "scheduler";
/// Keeps the content-addressable store within its size.
pub(super) const CAS: &str = "cas";
/// Decides on quotas.
pub(super) const GOVERNOR: &str = "governor";
/// Learns what builds occupy.
pub(super) const TRAINER: &str = "trainer";
/// Decides how many processes pools should have.
pub(super) const AUTOSCALER: &str = "autoscaler";
/// Runs builds.
pub(super) const WORKER: &str = "worker";
/// Runs actions.
pub(super) const EXECUTOR: &str = "executor";

/// Where a service writes that it is ready, and where it listens.
const LISTEN_FILE: &str = "FOREBAY_LISTEN_FILE";
const HTTP_LISTEN: &str = "FOREBAY_HTTP_LISTEN";
const GRPC_LISTEN: &str = "FOREBAY_GRPC_LISTEN";
const METRICS_LISTEN: &str = "FOREBAY_METRICS_LISTEN";

/// What a service wrote when it was ready.
#[derive(Debug, Deserialize)]
struct Listening {
    http: Option<String>,
    grpc: Option<String>,
    metrics: Option<String>,
}

/// How a service of the farm is started.
#[derive(Debug, Clone)]
pub(super) struct Maker {
    program: PathBuf,
    variables: BTreeMap<String, String>,
}

impl Maker {
    /// With these settings.
    pub(super) fn new(settings: &Settings) -> Result<Self, UpError> {
        let program = std::env::current_exe();
        let program = program.map_err(|source| UpError::System { what: "finding this program", source })?;
        Ok(Self { program, variables: variables(settings) })
    }

    /// One process of `service`, by the name `name`.
    pub(super) fn spec(&self, folder: &Folder, name: &str, service: &str) -> Spec {
        spec(folder, self.program.clone(), self.variables.clone(), name, service)
    }
}

/// How many of those of which there may be several; `None` where their number follows the work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    pub(super) workers: Option<u16>,
    pub(super) executors: Option<u16>,
}

/// The names of several: `worker`, or `worker-1`, `worker-2` and so on.
fn names(service: &str, count: Option<u16>) -> Vec<String> {
    match count {
        None => Vec::new(),
        Some(1) => vec![service.to_owned()],
        Some(many) => (1..=many).map(|number| format!("{service}-{number}")).collect(),
    }
}

/// How to start every service whose number does not follow the work.
pub(super) fn specs(folder: &Folder, settings: &Settings, maker: &Maker, counts: Counts) -> Vec<Spec> {
    let spec = |name: &str, service: &str| maker.spec(folder, name, service);
    let mut specs = vec![spec(ENQUEUER, ENQUEUER), spec(DISPATCHER, DISPATCHER), spec(SCHEDULER, SCHEDULER)];
    specs.extend(names(WORKER, counts.workers).iter().map(|name| spec(name, WORKER)));
    specs.extend(names(EXECUTOR, counts.executors).iter().map(|name| spec(name, EXECUTOR)));
    let mut cas = spec(CAS, CAS);
    // The farm's own address is the gateway's.
    cas.env.insert(GRPC_LISTEN.to_owned(), ports::with_port(&settings.grpc_listen, 0));
    specs.extend([
        spec(GOVERNOR, GOVERNOR),
        spec(TRAINER, TRAINER),
        spec(REAPER, REAPER),
        cas,
        spec(GATEWAY, GATEWAY),
    ]);
    if !settings.autoscale.is_empty() {
        specs.push(spec(AUTOSCALER, AUTOSCALER));
    }
    specs
}

/// Whether this child is a worker.
pub(super) fn is_worker(name: &str) -> bool {
    name.strip_prefix(WORKER).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// How to start the process that ends the others when `up` was killed.
pub(super) fn watchdog(folder: &Folder, maker: &Maker) -> Spec {
    Spec {
        name: watchdog::NAME.to_owned(),
        program: maker.program.clone(),
        args: vec!["watchdog".into(), "--data".into(), folder.root().into()],
        env: maker.variables.clone(),
        log: folder.log(watchdog::NAME),
        lock: None,
        tethered: true,
        remember: |_| BTreeMap::new(),
    }
}

fn spec(
    folder: &Folder,
    program: PathBuf,
    mut env: BTreeMap<String, String>,
    name: &str,
    service: &str,
) -> Spec {
    let listen_file = folder.listen_file(name);
    // What an earlier run left says nothing about this one.
    let _ = fs::remove_file(&listen_file);
    env.insert(LISTEN_FILE.to_owned(), listen_file.display().to_string());
    Spec {
        name: name.to_owned(),
        program,
        // The settings come by the environment; the folder is here for whoever reads a list of processes.
        args: vec!["serve".into(), service.into(), "--data".into(), folder.root().into()],
        env,
        log: folder.log(name),
        lock: None,
        tethered: false,
        remember: remembered,
    }
}

/// Every setting as the variable that means the same, so that a child has exactly our settings.
fn variables(settings: &Settings) -> BTreeMap<String, String> {
    let Ok(Value::Object(fields)) = serde_json::to_value(settings) else { return BTreeMap::new() };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    };
    fields
        .into_iter()
        .map(|(name, value)| (format!("FOREBAY_{}", name.to_uppercase()), text(&value)))
        .collect()
}

/// The settings of the children: `up` decides where they listen.
pub(super) fn child_settings(
    settings: &Settings,
    folder: &Folder,
    nats: &str,
    redis: &str,
    store: &str,
) -> Settings {
    Settings {
        nats_url: nats.to_owned(),
        redis_url: redis.to_owned(),
        store_url: store.to_owned(),
        data: folder.root().to_owned(),
        // One fixed port cannot be everyone's.
        metrics_listen: ports::with_port(&settings.metrics_listen, 0),
        ..settings.clone()
    }
}

/// The ports that a service had, for its next start: others know them.
fn remembered(spec: &Spec) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    let Some(listening) = spec.env.get(LISTEN_FILE).and_then(|path| read(path.as_ref()).ok()) else {
        return env;
    };
    let mut remember = |variable: &str, url: Option<String>| {
        // The port alone: the host may be a name, or every interface.
        let listen = spec.env.get(variable).zip(url);
        env.extend(listen.map(|(listen, url)| {
            let (_, port) = ports::split(&ports::address_of(&url, 80)).to_owned();
            (variable.to_owned(), ports::with_port(listen, port))
        }));
    };
    remember(METRICS_LISTEN, listening.metrics);
    remember(HTTP_LISTEN, listening.http);
    remember(GRPC_LISTEN, listening.grpc);
    env
}

fn read(path: &std::path::Path) -> io::Result<Listening> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Returns when the service is ready.
pub(super) async fn ready(folder: &Folder, name: &str) {
    while read(&folder.listen_file(name)).is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Where a service shows its metrics, once it is ready.
pub(super) fn metrics(folder: &Folder, name: &str) -> Option<String> {
    read(&folder.listen_file(name)).ok()?.metrics
}

/// Adds where a service listens.
pub(super) fn add_endpoints(folder: &Folder, name: &str, endpoints: &mut Endpoints) {
    let Ok(listening) = read(&folder.listen_file(name)) else { return };
    endpoints.metrics.extend(listening.metrics.map(|url| (name.to_owned(), url)));
    endpoints.http = listening.http.or(endpoints.http.take());
    match name {
        CAS => endpoints.cas = listening.grpc,
        _ => endpoints.grpc = listening.grpc.or(endpoints.grpc.take()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Settings, names, remembered, variables};

    #[test]
    fn every_setting_reaches_the_children() {
        let settings = Settings { nats_url: "nats://x:1".into(), workspaces: 7, ..Settings::default() };
        let variables = variables(&settings);
        assert_eq!(variables["FOREBAY_NATS_URL"], "nats://x:1");
        assert_eq!(variables["FOREBAY_WORKSPACES"], "7");
        assert_eq!(variables["FOREBAY_KEEP_FAILED_WORKSPACES"], "false");
        assert_eq!(variables["FOREBAY_STORE_URL"], "");
    }

    #[test]
    fn workers_are_numbered_when_there_are_several() {
        assert_eq!(names("worker", Some(1)), ["worker"]);
        assert_eq!(names("worker", Some(2)), ["worker-1", "worker-2"]);
        assert!(names("worker", Some(0)).is_empty());
        assert!(names("worker", None).is_empty(), "those are started as they are needed");
    }

    #[test]
    fn ports_are_remembered() {
        let path = std::env::temp_dir().join(format!("forebay-listen-{}.json", std::process::id()));
        std::fs::write(
            &path,
            r#"{"http":"http://127.0.0.1:81","metrics":"http://127.0.0.1:82/metrics","pid":1}"#,
        )
        .unwrap();
        let mut env = variables(&Settings { http_listen: "0.0.0.0:0".into(), ..Settings::default() });
        env.insert(super::LISTEN_FILE.into(), path.display().to_string());
        let spec = super::Spec {
            name: String::new(),
            program: "x".into(),
            args: Vec::new(),
            env,
            log: "x".into(),
            lock: None,
            tethered: false,
            remember: remembered,
        };
        let found = remembered(&spec);
        assert_eq!(found["FOREBAY_HTTP_LISTEN"], "0.0.0.0:81");
        assert_eq!(found["FOREBAY_METRICS_LISTEN"], "127.0.0.1:82");
        std::fs::remove_file(&path).unwrap();
    }
}
