//! A running farm for tests.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use bus::{Bus, EventKind, EventSubject, Patience, Stored, WatchedKinds};
use client::{Client, ClientError, WatchBody, WatchEvent};
use model::{BuildId, BuildKey, BuildRecord, BuildRequest, ErrorCode, Group, Priority, Sequence, State};
use parking_lot::Mutex;
use settings::Settings;
use tokio::{process::Command, time::Instant};

use crate::{
    Builder, Effects, Process, SOON, Servers, ServiceProcess, binary::with_tools, forebay_binary,
    topology::ensure_topology,
};

/// Servers and services, which all end when it is dropped.
#[derive(Debug)]
pub struct Farm {
    // Fields are dropped in this order: services before servers.
    services: Mutex<Vec<ServiceProcess>>,
    client: Client,
    env: BTreeMap<String, String>,
    number: AtomicU32,
    /// The nats-servers and Redis.
    pub servers: Servers,
}

/// Output of a command line, and its exit code.
#[derive(Debug, Clone)]
pub struct Output {
    /// Exit code of the command; -1 for a signal.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Builder {
    /// Starts servers and services; returns when all are ready.
    pub async fn start(self) -> Farm {
        Farm::start(self).await
    }
}

impl Farm {
    /// Returns a builder with short times.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts all services, with short times.
    pub async fn all() -> Self {
        Self::builder().start().await
    }

    async fn start(builder: Builder) -> Self {
        let servers = Servers::start_cluster(builder.nodes, builder.bus_megabytes).await;
        let bus = Bus::connect(&servers.nats_url(), "test", Patience::Wait).await.expect("a valid URL");
        let replicas = builder.env.get("FOREBAY_REPLICAS").and_then(|count| count.parse().ok()).unwrap_or(1);
        ensure_topology(&bus, &Settings { replicas, ..Settings::default() }.topology()).await;
        let farm = Self {
            services: Mutex::default(),
            client: Client::new(bus),
            env: builder.env,
            number: AtomicU32::new(0),
            servers,
        };
        let mut started: Vec<ServiceProcess> =
            builder.services.iter().map(|service| farm.start_unready(service, &[])).collect();
        for service in &mut started {
            service.ready(SOON).await;
        }
        farm.services.lock().extend(started);
        farm
    }

    /// Starts one more process of a service and waits until it is ready. The caller owns it: dropping it kills it.
    pub async fn spawn(&self, service: &str) -> ServiceProcess {
        self.spawn_with_env(service, &[]).await
    }

    /// Like [`Self::spawn`], with additional environment variables.
    pub async fn spawn_with_env(&self, service: &str, env: &[(&str, &str)]) -> ServiceProcess {
        let mut started = self.start_unready(service, env);
        started.ready(SOON).await;
        started
    }

    /// Starts a service without waiting for it.
    pub fn start_unready(&self, service: &str, env: &[(&str, &str)]) -> ServiceProcess {
        self.start_by(service, env, |command| command)
    }

    fn start_by(
        &self,
        service: &str,
        env: &[(&str, &str)],
        adapt: impl FnOnce(Command) -> Command,
    ) -> ServiceProcess {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let name = format!("{service}-{number}");
        let listen_file = self.folder().join(format!("{name}.listen.json"));
        let log = self.folder().join("logs").join(format!("{name}.log"));
        let mut command = self.command(&["serve", service]);
        command.env("FOREBAY_LISTEN_FILE", &listen_file).envs(env.iter().copied());
        ServiceProcess::new(Process::start(&name, adapt(command), &log, self.servers.guard()), listen_file)
    }

    /// Starts a service with a limit of `descriptors` open files, and waits until it is ready or has ended.
    pub async fn spawn_limited(
        &self,
        service: &str,
        descriptors: u32,
        env: &[(&str, &str)],
    ) -> ServiceProcess {
        let mut started = self.start_by(service, env, |command| {
            let mut limited = Command::new("sh");
            limited.args(["-c", &format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"")]);
            let inner = command.as_std();
            limited.arg(inner.get_program()).args(inner.get_args());
            for (name, value) in inner.get_envs() {
                match value {
                    Some(value) => limited.env(name, value),
                    None => limited.env_remove(name),
                };
            }
            limited
        });
        started.ready(SOON).await;
        started
    }

    /// Removes the first service of this name from the farm and returns it.
    pub fn take(&self, service: &str) -> ServiceProcess {
        let mut services = self.services.lock();
        let prefix = format!("{service}-");
        let at = services.iter().position(|process| process.name().starts_with(&prefix));
        services.remove(at.unwrap_or_else(|| panic!("the farm runs no {service}")))
    }

    /// Adds a service to the farm: it lives as long as the farm.
    pub fn keep(&self, service: ServiceProcess) {
        self.services.lock().push(service);
    }

    /// Kills the service (SIGKILL) and starts it again with additional environment variables.
    pub async fn replace(&self, service: &str, env: &[(&str, &str)]) {
        // A process is killed when it is dropped.
        drop(self.take(service));
        let next = self.spawn_with_env(service, env).await;
        self.keep(next);
    }

    /// Process id of the first service of this name.
    pub fn pid(&self, service: &str) -> u32 {
        let prefix = format!("{service}-");
        let services = self.services.lock();
        let found = services.iter().find(|process| process.name().starts_with(&prefix));
        found.unwrap_or_else(|| panic!("the farm runs no {service}")).pid()
    }

    /// URL `http://HOST:PORT` of the gateway.
    pub fn http_url(&self) -> String {
        let services = self.services.lock();
        let urls = services.iter().filter_map(|process| process.listening()?.http);
        urls.into_iter().next().expect("the farm runs a gateway")
    }

    /// URL `grpc://HOST:PORT` of the gateway.
    pub fn grpc_url(&self) -> String {
        self.grpc_urls().into_iter().next().expect("the farm runs a gateway")
    }

    /// URLs `grpc://HOST:PORT` of all gateways.
    pub fn grpc_urls(&self) -> Vec<String> {
        let services = self.services.lock();
        let gateways = services.iter().filter(|process| process.name().starts_with("gateway-"));
        gateways.filter_map(|it| it.listening()?.grpc).collect()
    }

    /// URL `http://HOST:PORT/metrics` of every service, by name.
    pub fn metrics_urls(&self) -> BTreeMap<String, String> {
        let services = self.services.lock();
        services.iter().filter_map(|it| Some((it.name().to_owned(), it.listening()?.metrics?))).collect()
    }

    /// Client of the farm's API.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn bus(&self) -> &Bus {
        self.client.bus()
    }

    /// Folder of the farm; the services' data is in `data`.
    pub fn folder(&self) -> &Path {
        self.servers.folder()
    }

    /// Data folder of the services.
    pub fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// File in which commands record their effects.
    pub fn effects(&self) -> Effects {
        Effects::new(self.folder().join("effects"))
    }

    /// Prepares `forebay ARGS` for this farm without starting it.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = bare_command(args);
        // Tests have their sources below this folder, and their servers on this machine.
        let folders = serde_json::json!([self.folder()]).to_string();
        command
            .env("FOREBAY_CONTEXT_PATHS", folders)
            // Actions that must be alone are alone in their test.
            .env("FOREBAY_MACHINE_LOCK", self.folder().join("machine-lock"))
            .env("FOREBAY_FETCH_HOSTS", r#"["127.0.0.1", "::1"]"#)
            .envs(&self.env)
            .envs(self.servers.env())
            .env("FOREBAY_DATA", self.data())
            .env("XDG_STATE_HOME", self.folder().join("state"));
        command
    }

    /// Runs `forebay ARGS` to its end.
    pub async fn cli(&self, args: &[&str]) -> Output {
        Output::of(self.command(args)).await
    }

    /// Queues a build through the API.
    pub async fn create(&self, group: &str, priority: Priority, command: &[impl AsRef<str>]) -> BuildKey {
        let command = command.iter().map(|word| word.as_ref().to_owned()).collect();
        self.submit(group, BuildRequest { command, priority: Some(priority), ..BuildRequest::default() })
            .await
    }

    /// Queues a build through the API; an id is generated when it has none.
    pub async fn submit(&self, group: &str, mut request: BuildRequest) -> BuildKey {
        let group: Group = group.parse().expect("a group");
        let id = *request.id.get_or_insert_with(BuildId::generate);
        self.client.create(&group, &request, None).await.expect("the build is queued");
        BuildKey { group, id }
    }

    /// Publishes a build as any client may: JSON with its group and id as headers.
    pub async fn publish(&self, group: &str, priority: Priority, request: &BuildRequest) -> BuildKey {
        let key = BuildKey {
            group: group.parse().expect("a group"),
            id: request.id.unwrap_or_else(BuildId::generate),
        };
        let subject = bus::RequestSubject { group: key.group.clone(), priority }.to_string();
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Nats-Msg-Id", key.to_string());
        headers.insert("Content-Type", "application/json");
        let payload = serde_json::to_vec(request).expect("requests are JSON");
        let publish = self.bus().jetstream().publish_with_headers(subject, headers, payload.into());
        publish.await.expect("the request is sent").await.expect("the request is stored");
        key
    }

    /// Waits for the end of the build and returns its last record.
    pub async fn wait_finished(&self, key: &BuildKey, limit: Duration) -> BuildRecord {
        self.wait_until(key, limit, |record| record.state() == State::Finished).await.1
    }

    /// Returns the first lifecycle message, from the beginning, that satisfies the condition, and its position.
    pub async fn wait_until(
        &self,
        key: &BuildKey,
        limit: Duration,
        wanted: impl Fn(&BuildRecord) -> bool,
    ) -> (Sequence, BuildRecord) {
        let found = self.wait_event(key, limit, &[EventKind::Lifecycle], |event| match &event.body {
            WatchBody::Lifecycle(record) => wanted(record),
            WatchBody::Console(_) | WatchBody::Frame(_) | WatchBody::Tool(_) | WatchBody::Bazel(_) => false,
        });
        match found.await {
            WatchEvent { position, body: WatchBody::Lifecycle(record), .. } => (position, *record),
            other => panic!("{other:?} is not of the kind that was asked for"),
        }
    }

    /// Returns the first event, from the beginning, that satisfies the condition. The build need not be queued yet.
    pub async fn wait_event(
        &self,
        key: &BuildKey,
        limit: Duration,
        kinds: &[EventKind],
        wanted: impl Fn(&WatchEvent) -> bool,
    ) -> WatchEvent {
        let began = Instant::now();
        let mut seen = Vec::new();
        let search = async {
            self.exists(key).await;
            let mut watch = self.client.watch(key, Sequence(0), kinds);
            while let Some(event) = watch.next().await.expect("the build can be watched") {
                if wanted(&event) {
                    return Some(event);
                }
                seen.push(event);
            }
            None
        };
        let found = tokio::time::timeout(limit, search).await.ok();
        let why = if found.is_none() { "did not come in time" } else { "never came" };
        found.flatten().unwrap_or_else(|| {
            panic!("build {key}: the expected event {why}, after {:?}: {seen:#?}", began.elapsed())
        })
    }

    /// Returns when the build has a lifecycle message.
    async fn exists(&self, key: &BuildKey) {
        let live = self.bus().live_connection().live_build(key, WatchedKinds::ALL).await;
        let mut live = live.expect("a subscription");
        loop {
            match self.client.watch(key, Sequence(0), &[]).next().await {
                Ok(_) => return,
                Err(ClientError::Api(error)) if error.error == ErrorCode::NotFound => {}
                Err(error) => panic!("build {key}: {error}"),
            }
            // A live message may be lost with the connection.
            let _ = tokio::time::timeout(Duration::from_secs(1), live.next()).await;
        }
    }

    /// Returns all stored events of a build, up to its last record at least.
    pub async fn stored(&self, key: &BuildKey) -> Vec<Stored> {
        let last = self.bus().records().latest(key).await.expect("the record is read");
        let last = last.map_or(Sequence(0), |(sequence, _)| sequence);
        let began = std::time::Instant::now();
        loop {
            let all = self.stored_so_far(key).await;
            // A replica may not have the last events yet.
            if all.iter().any(|stored| stored.sequence >= last) || last == Sequence(0) {
                return all;
            }
            assert!(began.elapsed() < SOON, "no replica has event {last} of build {key}");
        }
    }

    async fn stored_so_far(&self, key: &BuildKey) -> Vec<Stored> {
        let mut all: Vec<Stored> = Vec::new();
        loop {
            let from = Sequence(all.last().map_or(1, |stored| stored.sequence.0 + 1));
            let tail =
                self.bus().read_events(key, WatchedKinds::ALL, from, 200).await.expect("events are read");
            let progress = !tail.events.is_empty();
            all.extend(tail.events);
            if !tail.more || !progress {
                return all;
            }
        }
    }

    /// Returns all lifecycle messages of a build.
    pub async fn history(&self, key: &BuildKey) -> Vec<(Sequence, BuildRecord)> {
        let lifecycle = EventSubject::lifecycle(key).to_string();
        let stored = self.stored(key).await;
        let of_lifecycle = stored.iter().filter(|stored| stored.subject == lifecycle);
        of_lifecycle.map(|stored| (stored.sequence, stored.record().expect("a record"))).collect()
    }
}

impl Output {
    /// Runs `command` to its end, within 220 seconds.
    pub async fn of(mut command: Command) -> Self {
        command.stdin(Stdio::null()).kill_on_drop(true);
        let ended = tokio::time::timeout(Duration::from_secs(220), command.output()).await;
        let output = ended.expect("the command ends").expect("the command starts");
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Prepares `forebay ARGS` without those variables of our own environment that it would read.
pub fn bare_command(args: &[&str]) -> Command {
    let mut command = Command::new(forebay_binary());
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("FOREBAY_") || name.starts_with("OTEL_")) {
            command.env_remove(name);
        }
    }
    // These make the output of `submit --follow` foldable.
    for name in ["GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE"] {
        command.env_remove(name);
    }
    // All tests together load the machine; this must not slow down the executors of one test.
    command.args(args).env("PATH", with_tools()).env("FOREBAY_LOAD_MAX", "0");
    // Most tests are about what follows once a window has grown to all slots.
    command.env("FOREBAY_WINDOW_START_POINTS", "100000");
    // Builds of tests tell their tests what they do by files of the machine.
    command.env("FOREBAY_BUILD_SANDBOX", "none");
    // Tests write nothing into the home of who runs them: only farms remember their last build, in their own folder.
    command.env("XDG_STATE_HOME", "/dev/null");
    // For the same reason a farm may take longer to start than a user would wait.
    command.env("FOREBAY_WAIT", "120s");
    command
}
