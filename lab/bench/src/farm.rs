//! A farm for a benchmark.

use std::{
    fs::{File, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use bus::{Bus, EventKind, Patience, QuotaOf};
use client::{Client, WatchBody};
use credentials::Server;
use index::Index;
use model::{
    BuildId, BuildKey, BuildRecord, BuildRequest, Control, DigestFunction, Endpoints, Esu, ExecutorType,
    GovernorRecord, Group, Occupancy, Quota, Sequence,
};
use nix::sys::signal::Signal;
use remote::Remote;
use tokio::process::{Child, Command};

use crate::{error::BenchError, memory_group::MemoryGroup, program};

/// A `forebay up` in a temporary folder, and connections to it.
pub(crate) struct BenchFarm {
    up: Child,
    folder: tempfile::TempDir,
    pub(crate) client: Client,
    pub(crate) index: Index,
    pub(crate) group: Group,
    pub(crate) endpoints: Endpoints,
    /// Number of services started in addition to those of `up`.
    started: AtomicU32,
    /// Schedulers started in addition to that of `up`. They are killed when dropped.
    schedulers: Vec<Child>,
}

const START: Duration = Duration::from_secs(30);

impl BenchFarm {
    /// Starts a farm with this many workspaces, or the default number, and waits until it answers.
    pub(crate) async fn start(workspaces: impl Into<Option<u16>>, more: &[&str]) -> Result<Self, BenchError> {
        Self::start_with(workspaces, more, &[]).await
    }

    /// Starts a farm for actions with these settings and without executors, which [`BenchFarm::executor`] starts.
    pub(crate) async fn of_actions(settings: &[(&str, &str)]) -> Result<Self, BenchError> {
        Self::start_with(1, &["--executors", "0", "--sandbox", "none"], settings).await
    }

    /// Starts only nats-server and Redis; [`BenchFarm::scheduler`] starts schedulers.
    pub(crate) async fn of_servers() -> Result<Self, BenchError> {
        Self::start_with(None, &["--no-services"], &[]).await
    }

    /// Starts a farm with settings as environment variables.
    pub(crate) async fn start_with(
        workspaces: impl Into<Option<u16>>,
        more: &[&str],
        settings: &[(&str, &str)],
    ) -> Result<Self, BenchError> {
        let failed = |what: &str, error: &dyn std::error::Error| BenchError::new(what, error);
        // Accessible to the user that runs the actions.
        let open = Permissions::from_mode(0o755);
        let folder = tempfile::Builder::new().permissions(open).tempdir();
        let folder = folder.map_err(|error| failed("cannot create a temporary folder", &error))?;
        let log = File::create(folder.path().join("up.log"))
            .map_err(|error| failed("cannot write the log of the farm", &error))?;
        let mut command = forebay()?;
        let data = folder.path().join("data");
        command.arg("up").arg("--data").arg(&data);
        if let Some(workspaces) = workspaces.into() {
            command.args(["--workspaces", &workspaces.to_string()]);
        }
        command
            .args(["--nats-port", "0", "--redis-port", "0", "--http-port", "0", "--grpc-port", "0"])
            .args(more)
            .envs(settings.iter().copied());
        // This process holds the other end of the pipe: the farm ends with it, also if it is killed.
        command.arg("--stop-at-eof").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        let up = command.spawn().map_err(|error| failed("cannot start forebay up", &error))?;
        let ready = tokio::time::timeout(START, async {
            loop {
                if let Ok(text) = tokio::fs::read_to_string(data.join("endpoints.json")).await
                    && let Ok(endpoints) = serde_json::from_str::<Endpoints>(&text)
                {
                    return endpoints;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let endpoints = ready.await.map_err(|error| failed("the farm did not start", &error))?;
        let bus = Bus::connect(Server::nats_of(&endpoints), "forebay bench", Patience::None)
            .await
            .map_err(|error| failed("connecting to the farm", &error))?;
        let index = Index::connect(Server::redis_of(&endpoints), false)
            .await
            .map_err(|error| failed("connecting to the farm", &error))?;
        let group =
            "bench".parse().map_err(|error: model::ParseIdError| failed("naming the group", &error))?;
        let (client, started, schedulers) = (Client::new(bus), AtomicU32::new(0), Vec::new());
        Ok(Self { up, folder, client, index, group, endpoints, started, schedulers })
    }

    /// Opens a new connection to the Remote Execution API.
    pub(crate) async fn remote(&self) -> Result<Remote, BenchError> {
        let url = self.endpoints.grpc.as_deref().unwrap_or_default();
        Ok(Remote::connect(url, "", DigestFunction::Sha256).await?)
    }

    /// Starts another executor with these settings. It reads blobs from the farm's store and shares no folder with
    /// other executors. It stops when dropped; a later one with the same name reuses its folder.
    pub(crate) async fn executor(
        &self,
        name: &str,
        settings: &[(&str, &str)],
    ) -> Result<Executor, BenchError> {
        self.executor_within(name, settings, None).await
    }

    /// Starts another executor in this control group.
    pub(crate) async fn executor_within(
        &self,
        name: &str,
        settings: &[(&str, &str)],
        group: Option<&MemoryGroup>,
    ) -> Result<Executor, BenchError> {
        let cas = self.endpoints.cas.as_deref();
        let cas = cas.ok_or_else(|| BenchError::plain("the farm has no content-addressable store"))?;
        let mut command = forebay_within(group)?;
        command.args(["serve", "executor", "--sandbox", "none"]).env("FOREBAY_CAS_URL", cas);
        command.envs(settings.iter().copied());
        let data = self.folder.path().join("machines").join(name);
        let child = self.serve(command, name, &data).await?;
        Ok(Executor { child, data })
    }

    /// Starts a worker with these settings in this control group, and waits until it runs builds. It is killed when dropped.
    pub(crate) async fn worker_within(
        &self,
        settings: &[(&str, &str)],
        group: &MemoryGroup,
    ) -> Result<Child, BenchError> {
        let mut command = forebay_within(Some(group))?;
        command.args(["serve", "worker"]).envs(settings.iter().copied());
        let child = self.serve(command, "worker", &self.folder.path().join("worker")).await?;
        self.build(&no_op(), |_| ()).await?;
        Ok(child)
    }

    /// Starts another scheduler with this name and these settings.
    pub(crate) async fn scheduler(
        &mut self,
        name: &str,
        settings: &[(&str, &str)],
    ) -> Result<(), BenchError> {
        let mut command = forebay()?;
        command.args(["serve", "scheduler"]).envs(settings.iter().copied());
        let child = self.serve(command, name, &self.folder.path().join(name)).await?;
        self.endpoints.processes.extend(child.id().map(|pid| (name.to_owned(), pid)));
        self.schedulers.push(child);
        Ok(())
    }

    /// Starts a service by `command`, with a data folder of its own, and waits until it is ready.
    async fn serve(&self, mut command: Command, name: &str, data: &Path) -> Result<Child, BenchError> {
        let failed =
            |what: &str, error: &dyn std::error::Error| BenchError::new(format!("{what} {name}"), error);
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let ready = self.folder.path().join(format!("{name}-{number}.json"));
        let log = self.folder.path().join(format!("{name}-{number}.log"));
        let log = File::create(log).map_err(|error| failed("cannot write the log of", &error))?;
        command.args(["--nats", &self.endpoints.nats, "--redis", &self.endpoints.redis]);
        command.arg("--data").arg(data).env("FOREBAY_LISTEN_FILE", &ready);
        command
            .arg("--stop-at-eof")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true);
        let child = command.spawn().map_err(|error| failed("cannot start", &error))?;
        let started = tokio::time::timeout(START, async {
            while !ready.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        started.await.map_err(|error| failed("did not start in time:", &error))?;
        Ok(child)
    }

    /// The part of the data folder with this name.
    pub(crate) fn data(&self, name: &str) -> PathBuf {
        self.folder.path().join("data").join(name)
    }

    /// Creates a folder of this name that actions may write to.
    pub(crate) fn open_folder(&self, name: &str) -> Result<PathBuf, BenchError> {
        let path = self.folder.path().join(name);
        let made = std::fs::create_dir_all(&path)
            .and_then(|()| std::fs::set_permissions(&path, Permissions::from_mode(0o777)));
        made.map_err(|error| BenchError::new(format!("{}", path.display()), &error))?;
        Ok(path)
    }

    /// Queues one build of `/bin/true`.
    pub(crate) async fn create(&self) -> Result<BuildId, BenchError> {
        let id = BuildId::generate();
        let request = BuildRequest { id: Some(id), ..no_op() };
        let created = self.client.create(&self.group, &request, None).await;
        created.map_err(|error| BenchError::new("create failed", &error))?;
        Ok(id)
    }

    /// Runs one build and waits for its end; `observe` gets its record whenever it changes.
    pub(crate) async fn build(
        &self,
        request: &BuildRequest,
        mut observe: impl FnMut(&BuildRecord),
    ) -> Result<BuildRecord, BenchError> {
        let id = request.id.unwrap_or_else(BuildId::generate);
        let created =
            self.client.create(&self.group, &BuildRequest { id: Some(id), ..request.clone() }, None).await;
        created.map_err(|error| BenchError::new("create failed", &error))?;
        let failed = |error: &dyn std::error::Error| BenchError::new("watching a build", error);
        let key = BuildKey { group: self.group.clone(), id };
        let mut watch = self.client.watch(&key, Sequence(0), &[EventKind::Lifecycle]);
        while let Some(event) = watch.next().await.map_err(|error| failed(&error))? {
            if let WatchBody::Lifecycle(record) = event.body {
                observe(&record);
                if record.result().is_some() {
                    return Ok(*record);
                }
            }
        }
        Err(BenchError::plain("a build did not finish"))
    }

    /// Sets a quota of x86 for the group and waits for a decision of the governor.
    pub(crate) async fn set_quota(&self, units: f64) -> Result<(), BenchError> {
        let amount = Esu::new(units).map_err(|error| BenchError::usage("--quota", &error))?;
        let quota = Quota { esu: Occupancy::of_each([ExecutorType::x86()], amount) };
        self.client.bus().buckets().put(&QuotaOf::Group(self.group.clone()), Some(&quota)).await?;
        let decided = tokio::time::timeout(START, async {
            let record = || self.client.bus().buckets().get::<GovernorRecord>(&());
            while record().await.is_ok_and(|(_, record)| record.is_none_or(|record| record.tick == 0)) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        decided.await.map_err(|error| BenchError::new("the governor made no decision", &error))
    }

    /// Number of queued and running builds.
    pub(crate) async fn unfinished(&self) -> Result<u64, BenchError> {
        let counts =
            self.index.counts().await.map_err(|error| BenchError::new("reading the index", &error))?;
        Ok(counts.waiting + counts.running)
    }

    /// Number of bytes that the data in Redis takes.
    pub(crate) async fn redis_bytes(&self) -> Result<u64, BenchError> {
        let bytes = self.index.memory_bytes().await;
        bytes.map_err(|error| BenchError::new("reading the memory of Redis", &error))
    }

    /// Waits until at most `left` builds are unfinished.
    pub(crate) async fn wait_for(&self, left: u64) -> Result<(), BenchError> {
        while self.unfinished().await? > left {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Drains or resumes the workers.
    pub(crate) async fn drain(&self, drain: bool) -> Result<(), BenchError> {
        let failed = |error: &dyn std::error::Error| BenchError::new("sending an order to the worker", error);
        let order = if drain { Control::Drain } else { Control::Resume };
        for worker in self.client.workers().await.map_err(|error| failed(&error))? {
            let worker = worker.heartbeat.worker;
            self.client.control(&worker, &order).await.map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    fn terminate(&self) {
        if let Some(pid) = self.up.id().and_then(|pid| i32::try_from(pid).ok()) {
            // The process may have ended.
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
        }
    }

    /// Stops the farm and waits for its end.
    pub(crate) async fn stop(mut self) {
        // Close this connection first, since a lost one would be reported.
        self.client.bus().close(Duration::from_secs(2)).await;
        // Schedulers would report that their servers are gone.
        self.schedulers.clear();
        self.terminate();
        // A farm that still runs after this has received the signal, and ends later.
        let _ = tokio::time::timeout(Duration::from_secs(30), self.up.wait()).await;
    }
}

/// Stops the farm even after a failed measurement.
impl Drop for BenchFarm {
    fn drop(&mut self) {
        self.terminate();
    }
}

/// A build of `/bin/true`.
pub(crate) fn no_op() -> BuildRequest {
    BuildRequest { command: vec!["/bin/true".to_owned()], ..BuildRequest::default() }
}

/// A command of `forebay` without inherited settings in its environment.
fn forebay() -> Result<Command, BenchError> {
    let mut command = Command::new(program::forebay()?);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("FOREBAY_")) {
            command.env_remove(name);
        }
    }
    // The load is caused by the benchmark itself.
    command.env("FOREBAY_LOAD_MAX", "0");
    // Rates are measured in the first seconds, in which congestion windows would still grow.
    command.env("FOREBAY_WINDOW_START_POINTS", "100000");
    Ok(command)
}

/// The same, in this control group.
fn forebay_within(group: Option<&MemoryGroup>) -> Result<Command, BenchError> {
    let mut command = forebay()?;
    if let Some(group) = group {
        let own = command.as_std().get_program().to_owned();
        let inherited: Vec<_> = command
            .as_std()
            .get_envs()
            .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
            .collect();
        command = Command::new("/bin/sh");
        for (name, value) in inherited {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let procs = group.folder.join("cgroup.procs");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(procs).arg(own);
    }
    Ok(command)
}

/// An additional executor of a farm. It is killed when dropped.
pub(crate) struct Executor {
    child: Child,
    data: PathBuf,
}

impl Executor {
    /// Whether an action with this working directory ran on this executor.
    pub(crate) fn has(&self, working_directory: &str) -> bool {
        Path::new(working_directory.trim()).starts_with(&self.data)
    }

    /// Sends a signal to the executor.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // The process may have ended.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
        }
    }

    /// Sends a signal to the executor and waits for its end.
    pub(crate) async fn end(mut self, signal: Signal) {
        self.signal(signal);
        // A process that still runs is killed when it is dropped.
        let _ = tokio::time::timeout(START, self.child.wait()).await;
    }
}
