//! Forebay's services as children: this executable with `serve NAME`.

use std::{collections::BTreeMap, fs, io, path::PathBuf, time::Duration};

use invariant::impossible;
use model::Endpoints;
use serde::Deserialize;
use serde_json::Value;
use settings::Settings;

use crate::{
    child::Spec,
    error::UpError,
    folder::Folder,
    names::{
        ARCHIVE, AUTOSCALER, CAS, DISPATCHER, ENQUEUER, EXECUTOR, GATEWAY, GOVERNOR, REAPER, SCHEDULER,
        TRAINER, WATCHDOG, WORKER,
    },
    ports,
    secure::Secure,
};

/// Variable with the path of the file in which a service reports that it is ready and its addresses.
const LISTEN_FILE: &str = "FOREBAY_LISTEN_FILE";
const SEED_FILE: &str = "FOREBAY_SEED_FILE";
const HTTP_LISTEN: &str = "FOREBAY_HTTP_LISTEN";
const GRPC_LISTEN: &str = "FOREBAY_GRPC_LISTEN";
const CAS_LISTEN: &str = "FOREBAY_CAS_LISTEN";
const METRICS_LISTEN: &str = "FOREBAY_METRICS_LISTEN";

/// Addresses that a ready service has written to its listen file.
#[derive(Debug, Deserialize)]
struct Listening {
    http: Option<String>,
    grpc: Option<String>,
    metrics: Option<String>,
}

/// Creates the specifications of service processes.
#[derive(Debug, Clone)]
pub(crate) struct SpecFactory {
    program: PathBuf,
    variables: BTreeMap<String, String>,
    secure: Option<Secure>,
}

impl SpecFactory {
    /// A factory for services with these settings.
    pub(crate) fn new(settings: &Settings, secure: Option<Secure>) -> Result<Self, UpError> {
        let program = std::env::current_exe();
        let program = program.map_err(|source| UpError::System { what: "finding this program", source })?;
        Ok(Self { program, variables: variables(settings), secure })
    }

    /// Specification of one process of `service` called `name`.
    pub(crate) fn spec(&self, folder: &Folder, name: &str, service: &str) -> Spec {
        let mut variables = self.variables.clone();
        let seed = self.secure.as_ref().and_then(|secure| secure.seed_of(name, service));
        variables.extend(seed.map(|seed| (SEED_FILE.to_owned(), seed.display().to_string())));
        spec(folder, self.program.clone(), variables, name, service)
    }
}

/// Number of workers and executors; `None` if the pool is autoscaled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) workers: Option<u16>,
    pub(crate) executors: Option<u16>,
}

/// Names of the processes: `worker`, or `worker-1`, `worker-2` and so on if there are several.
fn names(service: &str, count: Option<u16>) -> Vec<String> {
    match count {
        None => Vec::new(),
        Some(1) => vec![service.to_owned()],
        Some(many) => (1..=many).map(|number| format!("{service}-{number}")).collect(),
    }
}

/// Specifications of all services except the autoscaled ones.
pub(crate) fn specs(
    folder: &Folder,
    settings: &Settings,
    spec_factory: &SpecFactory,
    counts: Counts,
) -> Vec<Spec> {
    let spec = |name: &str, service: &str| spec_factory.spec(folder, name, service);
    let mut specs = vec![spec(ENQUEUER, ENQUEUER), spec(DISPATCHER, DISPATCHER), spec(SCHEDULER, SCHEDULER)];
    specs.extend(names(WORKER, counts.workers).iter().map(|name| spec(name, WORKER)));
    specs.extend(names(EXECUTOR, counts.executors).iter().map(|name| spec(name, EXECUTOR)));
    let mut cas = spec(CAS, CAS);
    if settings.cas_listen == Settings::default().cas_listen {
        // On the same interfaces as the gateway.
        cas.env.insert(CAS_LISTEN.to_owned(), ports::with_port(&settings.grpc_listen, 0));
    }
    specs.extend([
        spec(GOVERNOR, GOVERNOR),
        spec(TRAINER, TRAINER),
        spec(ARCHIVE, ARCHIVE),
        spec(REAPER, REAPER),
        cas,
        spec(GATEWAY, GATEWAY),
    ]);
    if !settings.autoscale.is_empty() {
        specs.push(spec(AUTOSCALER, AUTOSCALER));
    }
    specs
}

/// Specification of the watchdog, which stops the other processes if `up` is killed.
pub(crate) fn watchdog(folder: &Folder, spec_factory: &SpecFactory) -> Spec {
    Spec {
        name: WATCHDOG.to_owned(),
        program: spec_factory.program.clone(),
        args: vec!["watchdog".into(), "--data".into(), folder.root().into()],
        env: spec_factory.variables.clone(),
        log: folder.log(WATCHDOG),
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
    // A file of an earlier run does not apply to this one. Usually there is none.
    let _ = fs::remove_file(&listen_file);
    env.insert(LISTEN_FILE.to_owned(), listen_file.display().to_string());
    Spec {
        name: name.to_owned(),
        program,
        // Settings are passed in the environment; the folder is for users that read the list of processes.
        args: vec!["serve".into(), service.into(), "--data".into(), folder.root().into()],
        env,
        log: folder.log(name),
        lock: None,
        tethered: false,
        remember: remembered,
    }
}

/// All settings as environment variables, so that a child has exactly the same settings.
fn variables(settings: &Settings) -> BTreeMap<String, String> {
    let Ok(Value::Object(fields)) = serde_json::to_value(settings) else {
        impossible!("the settings are not a JSON object");
        return BTreeMap::new();
    };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    };
    // A setting without a value is absent: a variable always has one.
    fields
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (format!("FOREBAY_{}", name.to_uppercase()), text(&value)))
        .collect()
}

/// Settings of the children, with the addresses that `up` has chosen.
pub(crate) fn child_settings(settings: &Settings, folder: &Folder, nats: &str, redis: &str) -> Settings {
    Settings {
        nats_url: nats.to_owned(),
        redis_url: redis.to_owned(),
        data: folder.root().to_owned(),
        // Several processes cannot share one fixed port.
        metrics_listen: ports::with_port(&settings.metrics_listen, 0),
        ..settings.clone()
    }
}

/// The ports of a service, which it must reuse after a restart because other processes know them.
fn remembered(spec: &Spec) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    let Some(listening) = spec.env.get(LISTEN_FILE).and_then(|path| read(path.as_ref()).ok()) else {
        return env;
    };
    let mut remember = |variable: &str, url: Option<String>| {
        // Only the port, since the host may be a name or all interfaces.
        let listen = spec.env.get(variable).zip(url);
        env.extend(listen.map(|(listen, url)| {
            let (_, port) = ports::split(&ports::address_of(&url, 80)).to_owned();
            (variable.to_owned(), ports::with_port(listen, port))
        }));
    };
    remember(METRICS_LISTEN, listening.metrics);
    remember(HTTP_LISTEN, listening.http);
    let grpc = if spec.name == CAS { CAS_LISTEN } else { GRPC_LISTEN };
    remember(grpc, listening.grpc);
    env
}

fn read(path: &std::path::Path) -> io::Result<Listening> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Waits until the service is ready.
pub(crate) async fn ready(folder: &Folder, name: &str) {
    while read(&folder.listen_file(name)).is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// URL of the metrics of a service, once it is ready.
pub(crate) fn metrics(folder: &Folder, name: &str) -> Option<String> {
    read(&folder.listen_file(name)).ok()?.metrics
}

/// Adds the addresses of a service to the endpoints.
pub(crate) fn add_endpoints(folder: &Folder, name: &str, endpoints: &mut Endpoints) {
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
        assert_eq!(variables["FOREBAY_CAS_URL"], "");
        assert!(!variables.contains_key("FOREBAY_GIT_CONFIG_FILE"));
    }

    #[test]
    fn workers_are_numbered_when_there_are_several() {
        assert_eq!(names("worker", Some(1)), ["worker"]);
        assert_eq!(names("worker", Some(2)), ["worker-1", "worker-2"]);
        assert!(names("worker", Some(0)).is_empty());
        assert!(names("worker", None).is_empty(), "autoscaled workers are started on demand");
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
