//! A whole farm: starts and stops its servers and services in order.

mod scaled;

use std::{
    future::Future,
    time::{Duration, Instant},
};

use bus::{Bus, Patience};
use credentials::Server;
use disk::Reserve;
use futures::future::try_join_all;
use invariant::{Present as _, impossible};
use jetstream::Topology;
use model::{BuildKey, Endpoints, Millis};
use policy::Claim;
use settings::{Settings, StoreSettings};
use tokio::task::JoinHandle;
use tracing::info;

use crate::{
    args::UpArgs,
    bus_watch::BusWatch,
    child::{Spec, Supervisor},
    contexts,
    error::UpError,
    folder::Folder,
    names, nats, ports, redis,
    roster::Roster,
    running::{heartbeats, running},
    scale::{self, Pool},
    secure::{PoolSizes, Secure},
    services,
    signals::Signals,
    stages::{STAGES, stage},
};

/// A farm on this machine.
#[derive(Debug)]
pub(crate) struct Farm {
    folder: Folder,
    roster: Roster,
    args: UpArgs,
    settings: Settings,
    /// Keys, certificates and rules; none without `--secure`.
    secure: Option<Secure>,
    patience: Patience,
    supervisors: Vec<Supervisor>,
    /// Task that restarts nats-server if its streams refuse writes.
    watch: Option<JoinHandle<()>>,
    /// Pools that are autoscaled.
    pools: Vec<Pool>,
    /// Start of this farm; older plans were made for an earlier one.
    began: Instant,
    /// Creates the processes of autoscaled pools.
    spec_factory: Option<services::SpecFactory>,
    /// What builds may read, for the user.
    contexts: String,
}

/// Role of this process.
const SUPERVISOR: &str = "supervisor";
/// Maximum attempts to use a free port, which another process may occupy first.
const PORT_TRIES: u32 = 5;
const STILL_WAITING: Duration = Duration::from_secs(10);
/// Time limit for workers to report their running builds.
const ASKING: Duration = Duration::from_secs(3);
/// Maximum number of builds that are listed while waiting for them.
const NAMED: usize = 5;

impl Farm {
    /// Creates a farm without starting it.
    pub(crate) fn new(
        folder: Folder,
        args: UpArgs,
        mut settings: Settings,
        patience: Patience,
    ) -> Result<Self, UpError> {
        if let Some(port) = args.http_port {
            settings.http_listen = ports::with_port(&settings.http_listen, port);
        }
        if let Some(port) = args.grpc_port {
            settings.grpc_listen = ports::with_port(&settings.grpc_listen, port);
        }
        settings.workspaces = args.workspaces.unwrap_or(settings.workspaces);
        settings.executor_slots = args.executor_slots.unwrap_or(settings.executor_slots);
        if let Some(url) = &args.store {
            settings.cas_url.clone_from(url);
        }
        if let Some(sandbox) = args.sandbox {
            settings.sandbox = sandbox;
        }
        let has_own_bus = settings.nats_url == Settings::default().nats_url;
        let secure = if args.secure { Some(secured(&folder, &args, &mut settings)?) } else { None };
        let keys = Secure::description_in(&folder);
        if secure.is_none() && has_own_bus && keys.exists() {
            return Err(UpError::WasSecured { keys });
        }
        let contexts = contexts::open(&mut settings, has_own_bus);
        let roster = Roster::new(folder.root());
        let pools = Pool::all(&settings);
        Ok(Self {
            folder,
            roster,
            args,
            settings,
            secure,
            patience,
            supervisors: Vec::new(),
            watch: None,
            pools,
            began: Instant::now(),
            spec_factory: None,
            contexts,
        })
    }

    /// nats-server at this URL, with the credentials of this process.
    fn bus(&self, url: &str) -> Server {
        Server { url: url.to_owned(), ..self.settings.nats(SUPERVISOR) }
    }

    /// What builds may read, for the user.
    pub(crate) fn contexts(&self) -> &str {
        &self.contexts
    }

    /// Stops the processes of an earlier `up`. Must run to completion, since afterwards they are no longer listed.
    pub(crate) async fn end_leftovers(&self) {
        self.roster.end_leftovers().await;
    }

    /// Starts everything and waits until it answers. After a failure, `stop` stops the running processes.
    pub(crate) async fn start(&mut self) -> Result<Endpoints, UpError> {
        self.check_ports()?;
        let nats = self.start_nats().await?;
        let redis = self.start_redis().await?;
        let store = self.set_up(&nats).await?;
        let mut endpoints = Endpoints {
            nats,
            redis,
            http: None,
            grpc: None,
            cas: None,
            operator: self.secure.as_ref().map(Secure::operator),
            store,
            data: self.folder.text().to_owned(),
            pid: std::process::id(),
            started_at_ms: Millis::of_this_machine(),
            metrics: std::collections::BTreeMap::new(),
            processes: std::collections::BTreeMap::new(),
        };
        self.start_watchdog(&endpoints)?;
        if !self.args.no_services {
            self.start_services(&mut endpoints).await?;
        }
        let path = self.folder.root().join("endpoints.json");
        self.roster.publish(endpoints).map_err(|source| UpError::Write { path, source })
    }

    /// Fails early if a requested port is in use.
    fn check_ports(&self) -> Result<(), UpError> {
        if self.external_nats().is_none() {
            ports::check(names::NATS, "127.0.0.1", self.args.nats_port, "--nats-port")?;
        }
        if self.external_redis().is_none() {
            ports::check(names::REDIS, "127.0.0.1", self.args.redis_port, "--redis-port")?;
        }
        if !self.args.no_services {
            let (host, port) = ports::split(&self.settings.http_listen);
            ports::check("the HTTP API", host, port, "--http-port")?;
            let (host, port) = ports::split(&self.settings.grpc_listen);
            ports::check("the Remote Execution API", host, port, "--grpc-port")?;
        }
        Ok(())
    }

    /// URL of an external nats-server, if one is configured.
    fn external_nats(&self) -> Option<&str> {
        Some(self.settings.nats_url.as_str()).filter(|url| *url != Settings::default().nats_url)
    }

    /// URL of an external Redis, if one is configured.
    fn external_redis(&self) -> Option<&str> {
        Some(self.settings.redis_url.as_str()).filter(|url| *url != Settings::default().redis_url)
    }

    async fn start_nats(&mut self) -> Result<String, UpError> {
        if let Some(url) = self.external_nats() {
            return Ok(url.to_owned());
        }
        let server = nats::Server::prepare(&self.folder)?;
        let (sync, reserve) = (self.args.sync, Reserve::new(self.settings.disk_left_percent));
        let requested = RequestedPort { port: self.args.nats_port, name: names::NATS, flag: "--nats-port" };
        let secure = self.secure.clone();
        let spec = |folder: &Folder, port| server.spec(folder, port, sync, reserve, secure.as_ref());
        let port = self.start_server(requested, spec, |port| server.answers(port)).await?;
        let scheme = if secure.is_some() { "tls" } else { "nats" };
        let url = format!("{scheme}://127.0.0.1:{port}");
        self.watch_nats(&url, reserve);
        Ok(url)
    }

    /// Starts the task that restarts nats-server if its streams refuse writes.
    fn watch_nats(&mut self, url: &str, reserve: Reserve) {
        let streams =
            Topology::new(&self.settings.topology()).streams.into_iter().map(|stream| stream.name).collect();
        let folder = self.folder.root().join("nats");
        let watch = BusWatch { server: self.bus(url), folder, reserve, streams };
        let supervisor = self.supervisors.iter().find(|supervisor| supervisor.name() == names::NATS);
        self.watch =
            supervisor.map(|supervisor| tokio::spawn(watch.restart_when_broken(supervisor.restart_signal())));
    }

    async fn start_redis(&mut self) -> Result<String, UpError> {
        if let Some(url) = self.external_redis() {
            redis::connect(url, self.patience).await?;
            return Ok(url.to_owned());
        }
        let program = redis::find()?;
        let requested =
            RequestedPort { port: self.args.redis_port, name: names::REDIS, flag: "--redis-port" };
        let secure = self.secure.clone();
        let spec = |folder: &Folder, port| Ok(redis::spec(program.clone(), folder, port, secure.as_ref()));
        let url = |port| format!("{}://127.0.0.1:{port}", if secure.is_some() { "rediss" } else { "redis" });
        let (roster, login) = (self.roster.clone(), self.settings.redis(SUPERVISOR));
        let answers = |port| {
            let server = Server { url: url(port), ..login.clone() };
            let (roster, is_secure) = (roster.clone(), secure.is_some());
            async move {
                if is_secure {
                    redis::admits(&server).await
                } else {
                    redis::answers(port, || roster.pid(names::REDIS)).await
                }
            }
        };
        let port = self.start_server(requested, spec, answers).await?;
        Ok(url(port))
    }

    /// Starts a server and waits until it answers on its port. Another server on the port is an error.
    async fn start_server<A: Future<Output = bool>>(
        &mut self,
        requested: RequestedPort,
        spec: impl Fn(&Folder, u16) -> Result<Spec, UpError>,
        answers: impl Fn(u16) -> A,
    ) -> Result<u16, UpError> {
        let mut tries = if requested.port == 0 { PORT_TRIES } else { 1 };
        loop {
            let port = if requested.port == 0 { ports::any()? } else { requested.port };
            let spec = spec(&self.folder, port)?;
            // Added to the list before any await, so that it is stopped even if this future is dropped.
            self.supervisors.push(Supervisor::start(spec, self.roster.clone()));
            let Some(supervisor) = self.supervisors.last_mut() else {
                impossible!("the list of supervisors is empty after an addition");
                continue;
            };
            let fault = tokio::select! {
                ours = patiently(requested.name, answers(port)) => {
                    if ours {
                        return Ok(port);
                    }
                    UpError::Busy { name: requested.name, port, flag: requested.flag }
                }
                how = supervisor.exited() => not_started(&self.folder, requested.name, how),
            };
            supervisor.kill();
            supervisor.ended().await;
            self.supervisors.pop();
            tries -= 1;
            if tries == 0 {
                return Err(fault);
            }
        }
    }

    /// Creates streams and buckets, and records the store. Returns the URL of the store.
    async fn set_up(&self, nats: &str) -> Result<String, UpError> {
        let bus = nats::connect(&self.bus(nats), self.patience).await?;
        jetstream::ensure(&bus, &Topology::new(&self.settings.topology())).await?;
        let store = StoreSettings { data: self.folder.root().to_owned(), ..self.settings.store() };
        let cas = service::open_cas(&store)?;
        // Without services, the first service that starts records the store.
        if !self.args.no_services || self.args.take_over {
            let claim = match (self.args.take_over, self.external_nats()) {
                (true, _) => Claim::TakeOver,
                (false, None) => Claim::OwnBus,
                (false, Some(_)) => Claim::Join,
            };
            service::join_store(&bus, &cas, claim, self.patience).await?;
        }
        bus.close(Duration::from_secs(1)).await;
        Ok(cas.url())
    }

    /// Starts the watchdog, which stops the other processes if this one is killed.
    fn start_watchdog(&mut self, endpoints: &Endpoints) -> Result<(), UpError> {
        if self.settings.orphan_seconds > 0 {
            let spec_factory =
                services::SpecFactory::new(&self.child_settings(endpoints), self.secure.clone())?;
            let spec = services::watchdog(&self.folder, &spec_factory);
            self.supervisors.push(Supervisor::start(spec, self.roster.clone()));
        }
        Ok(())
    }

    fn child_settings(&self, endpoints: &Endpoints) -> Settings {
        let Endpoints { nats, redis, .. } = endpoints;
        services::child_settings(&self.settings, &self.folder, nats, redis)
    }

    async fn start_services(&mut self, endpoints: &mut Endpoints) -> Result<(), UpError> {
        let settings = self.child_settings(endpoints);
        let fixed = |service: &str, count| {
            let scaled = self.pools.iter().any(|pool| pool.service() == service);
            (!scaled).then_some(count)
        };
        let counts = services::Counts {
            workers: fixed(names::WORKER, self.args.workers),
            executors: fixed(names::EXECUTOR, self.args.executors),
        };
        let spec_factory = services::SpecFactory::new(&settings, self.secure.clone())?;
        let mut specs = services::specs(&self.folder, &settings, &spec_factory, counts);
        for pool in &mut self.pools {
            let names = pool.begin();
            specs.extend(names.iter().map(|name| spec_factory.spec(&self.folder, name, pool.service())));
        }
        self.spec_factory = Some(spec_factory);
        let first = self.supervisors.len();
        self.supervisors.extend(specs.into_iter().map(|spec| Supervisor::start(spec, self.roster.clone())));
        let started = self.supervisors.get(first..).present("the supervisors of the new services");
        try_join_all(started.iter().map(|supervisor| async {
            tokio::select! {
                () = patiently(supervisor.name(), services::ready(&self.folder, supervisor.name())) => Ok(()),
                how = supervisor.exited() => Err(not_started(&self.folder, supervisor.name(), how)),
            }
        }))
        .await?;
        for supervisor in started {
            services::add_endpoints(&self.folder, supervisor.name(), endpoints);
        }
        Ok(())
    }

    /// Stops everything, workers first so that users can still query the farm. Another signal kills the rest at once.
    pub(crate) async fn stop(&mut self, signals: &mut Signals) {
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
        let drain = Duration::from_secs(self.settings.drain_seconds);
        tokio::select! {
            () = take_down(&mut self.supervisors, &self.roster, drain) => {}
            () = signals.another() => {
                info!("received another stop signal, killing everything");
                self.roster.withdraw();
                self.supervisors.iter().for_each(Supervisor::kill);
                for supervisor in &mut self.supervisors {
                    supervisor.ended().await;
                }
            }
        }
        self.roster.close();
    }
}

impl Farm {
    /// Message for the user: the builds that `up` waits for, how long, and their fate after that.
    pub(crate) async fn what_stops(&self, nats: &str) -> String {
        // If the bus does not answer in time, the message names no builds.
        let found = self.ask(nats, async |bus, workers| running(bus, workers).await).await;
        let builds: Vec<BuildKey> = found.unwrap_or_default().into_values().flatten().collect();
        stopping_text(&builds, self.settings.drain_seconds, self.folder.text())
    }
}

impl Farm {
    /// The sandbox in which the workers of this `up` run builds; `None` without workers.
    pub(crate) async fn build_sandbox(&self, nats: &str) -> Option<String> {
        let found = self.ask(nats, async |bus, workers| heartbeats(bus, workers).await).await?;
        let beat = found.into_values().next()?;
        beat.properties.values("sandbox").next().map(str::to_owned)
    }

    /// Asks the workers of this `up` on a connection of its own.
    async fn ask<T>(&self, nats: &str, question: impl AsyncFnOnce(&Bus, &[u32]) -> T) -> Option<T> {
        let asked = async {
            let bus = Bus::connect(self.bus(nats), "forebay up", Patience::None).await.ok()?;
            let answer = question(&bus, &self.roster.workers()).await;
            // Closed in time, since the server may stop soon and a lost connection would be logged.
            bus.close(Duration::from_secs(1)).await;
            Some(answer)
        };
        tokio::time::timeout(ASKING, asked).await.ok().flatten()
    }
}

/// Makes keys, certificates and rules, and sets them.
fn secured(folder: &Folder, args: &UpArgs, settings: &mut Settings) -> Result<Secure, UpError> {
    let defaults = Settings::default();
    for (flag, is_elsewhere) in [
        ("--nats (nats_url)", settings.nats_url != defaults.nats_url),
        ("--redis (redis_url)", settings.redis_url != defaults.redis_url),
    ] {
        if is_elsewhere {
            return Err(UpError::Elsewhere { flag });
        }
    }
    // A process that stops keeps its key while the next one starts.
    let scaled = |service: &str| {
        let pools = settings.autoscale.iter().filter(|(pool, _)| scale::service_of(pool) == service);
        pools.map(|(_, scaling)| 2 * u32::from(scaling.max)).max().unwrap_or(0)
    };
    let sizes = PoolSizes {
        workers: scaled(names::WORKER).max(args.workers.into()),
        executors: scaled(names::EXECUTOR).max(args.executors.into()),
    };
    let secure = Secure::prepare(folder, settings, sizes)?;
    secure.apply(settings);
    Ok(secure)
}

fn stopping_text(builds: &[BuildKey], drain_seconds: u64, data: &str) -> String {
    let (count, verb) = match builds {
        [] => return "stopping; press Ctrl-C again to kill\n".to_owned(),
        [_] => ("1 build".to_owned(), "is"),
        more => (format!("{} builds", more.len()), "are"),
    };
    let mut named: Vec<String> = builds.iter().take(NAMED).map(ToString::to_string).collect();
    if builds.len() > NAMED {
        named.push(format!("{} more", builds.len() - NAMED));
    }
    format!(
        "stopping when the running builds have ended, within {drain_seconds} s (drain_seconds): {count} {verb} \
         running: {}\n  \
         builds that are still running then are requeued, and run when the farm is up again\n  \
         watch  forebay watch ID --data {data}\n  \
         stop   press Ctrl-C again to kill everything now\n",
        named.join(", ")
    )
}

fn not_started(folder: &Folder, name: &str, how: String) -> UpError {
    UpError::NotStarted { name: name.to_owned(), how, log: folder.log(name) }
}

/// A requested port of a server; 0 is any free port.
#[derive(Debug, Clone, Copy)]
struct RequestedPort {
    port: u16,
    name: &'static str,
    flag: &'static str,
}

/// Waits without a limit and logs that, since a server may have to read a large store.
async fn patiently<T>(name: &str, what: impl Future<Output = T>) -> T {
    let mut what = std::pin::pin!(what);
    loop {
        tokio::select! {
            done = &mut what => return done,
            () = tokio::time::sleep(STILL_WAITING) => tracing::warn!(name, "still waiting for {name}"),
        }
    }
}

async fn take_down(supervisors: &mut [Supervisor], roster: &Roster, drain: Duration) {
    for now in 0..STAGES {
        if now == 1 {
            roster.withdraw();
        }
        let mut part: Vec<&mut Supervisor> =
            supervisors.iter_mut().filter(|supervisor| stage(supervisor.name(), drain).0 == now).collect();
        for supervisor in &part {
            supervisor.stop(stage(supervisor.name(), drain).1);
        }
        for supervisor in &mut part {
            supervisor.ended().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{BuildId, BuildKey};

    use super::stopping_text;

    #[test]
    fn who_stops_it_hears_for_what_it_waits() {
        assert_eq!(stopping_text(&[], 10, "/d"), "stopping; press Ctrl-C again to kill\n");
        let builds: Vec<BuildKey> =
            (0..7).map(|_| BuildKey { group: "g".parse().unwrap(), id: BuildId::generate() }).collect();
        let text = stopping_text(&builds, 10, "/d");
        for part in
            ["within 10 s", "7 builds are running: g/", ", 2 more", "requeued", "--data /d", "Ctrl-C again"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
