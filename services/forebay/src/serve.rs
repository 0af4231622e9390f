//! `forebay serve`: runs one or more services in one process.

use std::process::ExitCode;

use bus::Patience;
use clap::{Args, ValueEnum};
use command_line::{
    failure::{FAILED, Failure, UNREACHABLE, USAGE},
    globals::Globals,
};
use service::{Context, ServiceError};
use settings::{SandboxKind, Settings};
use tokio::{signal::unix::SignalKind, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

const STORE_HELP: &str = "Store of all blobs: s3://..., gs://..., az://..., file:///PATH, or grpc://HOST:PORT of a \
    gateway [default: the setting `cas_url`, else the store of the farm]";

/// Options of `forebay serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Services to run in this process
    #[arg(required = true, value_name = "SERVICE")]
    services: Vec<Service>,
    /// Address for /metrics and /healthz (port 0 = any free port) [default: the setting `metrics_listen`, 127.0.0.1:0]
    #[arg(long, value_name = "HOST:PORT")]
    metrics_listen: Option<String>,
    /// Address for the gateway's HTTP API [default: the setting `http_listen`, 127.0.0.1:8080]
    #[arg(long, value_name = "HOST:PORT")]
    http_listen: Option<String>,
    /// Address for the gateway's Remote Execution API [default: the setting `grpc_listen`, 127.0.0.1:8980]
    #[arg(long, value_name = "HOST:PORT")]
    grpc_listen: Option<String>,
    /// Address for the pages and the HTTP API of the service web [default: the setting `web_listen`, 127.0.0.1:8081]
    #[arg(long, value_name = "HOST:PORT")]
    web_listen: Option<String>,
    /// Address for the cache-only gRPC API of the cas service [default: the setting `cas_listen`, 127.0.0.1:0]
    #[arg(long, value_name = "HOST:PORT")]
    cas_listen: Option<String>,
    /// Number of actions that the executor runs in parallel [default: one per processor]
    #[arg(long, value_name = "N", value_parser = up::count)]
    executor_slots: Option<u16>,
    /// Sandbox for actions of the executor: bubblewrap or none [default: the setting `sandbox`, bubblewrap]
    #[arg(long, value_name = "HOW")]
    sandbox: Option<SandboxKind>,
    /// Pool of the executor [default: the setting `pool`, default]
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Number of workspaces of the worker [default: two per processor]
    #[arg(long, value_name = "N", value_parser = up::count)]
    workspaces: Option<u16>,
    #[arg(long, help = STORE_HELP, value_name = "URL")]
    store: Option<String>,
    #[command(flatten)]
    stop_at_eof: up::StopAtEof,
}

/// The services of a farm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Service {
    /// Checks and queues build requests, and answers queries of the API
    Enqueuer,
    /// Assigns waiting builds to idle workspaces
    Dispatcher,
    /// Decides how much each quota group may have in progress
    Governor,
    /// Decides the size of the pools in the setting `autoscale`
    Autoscaler,
    /// Keeps builds in SQL, longer than the bus, and answers questions about them
    Archive,
    /// Trains the occupancy model from finished builds
    Trainer,
    /// Runs builds in workspaces
    Worker,
    /// Requeues builds whose worker was lost; expires builds that wait or run too long
    Reaper,
    /// Serves the HTTP API and the Remote Execution API
    Gateway,
    /// Serves the pages for browsers and the HTTP API, apart from the gateways
    Web,
    /// Assigns waiting actions to executors
    Scheduler,
    /// Runs actions in sandboxes
    Executor,
    /// Evicts from the content-addressable store and serves it as a cache-only endpoint
    Cas,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Self::Enqueuer => "enqueuer",
            Self::Dispatcher => "dispatcher",
            Self::Governor => "governor",
            Self::Autoscaler => "autoscaler",
            Self::Archive => "archive",
            Self::Trainer => "trainer",
            Self::Worker => "worker",
            Self::Reaper => "reaper",
            Self::Gateway => "gateway",
            Self::Web => "web",
            Self::Scheduler => "scheduler",
            Self::Executor => "executor",
            Self::Cas => "cas",
        }
    }

    async fn run(self, context: Context, settings: &Settings) -> Result<(), ServiceError> {
        match self {
            Self::Enqueuer => enqueuer::run(context, settings.enqueuer()).await,
            Self::Dispatcher => dispatcher::run(context, settings.dispatcher()).await,
            Self::Governor => governor::run(context, settings.governor()).await,
            Self::Autoscaler => autoscaler::run(context, settings.autoscaler()).await,
            Self::Archive => archive::run(context, settings.archive()).await,
            Self::Trainer => trainer::run(context, settings.trainer()).await,
            Self::Worker => worker::run(context, settings.worker()).await,
            Self::Reaper => reaper::run(context, settings.reaper()).await,
            Self::Gateway => gateway::run(context, settings.gateway()).await,
            Self::Web => web::run(context, settings.web()).await,
            Self::Scheduler => scheduler::run(context, settings.scheduler()).await,
            Self::Executor => executor::run(context, settings.executor()).await,
            Self::Cas => cas_service::run(context, settings.cas()).await,
        }
    }
}

impl ServeArgs {
    /// Name of the process in logs and traces.
    pub(crate) fn name(&self) -> &'static str {
        match self.services.as_slice() {
            [one] => one.name(),
            _ => "serve",
        }
    }

    /// Raises the limit of open files, unless commands of builds and actions would inherit it: they keep the original
    /// limit. Logs a low limit; a server whose connections it does not cover does not start.
    fn prepare_descriptors(&self, settings: &Settings) {
        let runs = |service| self.services.contains(&service);
        let (builds, actions) = (runs(Service::Worker), runs(Service::Executor));
        let found = if builds || actions { listener::descriptors() } else { listener::raise_descriptors() };
        let workspaces = if builds { settings.worker().workspaces } else { 0 };
        let slots = if actions { settings.executor().slots } else { 0 };
        let needed = policy::connections::descriptors_to_run(workspaces, slots);
        match found {
            Ok(limit) if limit.soft < needed => warn!(
                limit = limit.soft,
                needed,
                "low limit of open files; raise it with ulimit -n, or with LimitNOFILE= in the systemd unit"
            ),
            Ok(limit) => debug!(limit = limit.soft, "limit of open files"),
            Err(error) => warn!(%error, "cannot raise the limit of open files"),
        }
    }

    /// Whether this is a single service with one sequential loop, which does not benefit from more threads. Several of
    /// its processes may run concurrently.
    pub(crate) fn is_one_loop(&self) -> bool {
        let one_loop = [
            Service::Enqueuer,
            Service::Dispatcher,
            Service::Governor,
            Service::Autoscaler,
            Service::Reaper,
            Service::Scheduler,
        ];
        matches!(self.services.as_slice(), [one] if one_loop.contains(one))
    }

    fn apply(&self, settings: &mut Settings) {
        if let Some(address) = &self.metrics_listen {
            settings.metrics_listen.clone_from(address);
        }
        if let Some(address) = &self.http_listen {
            settings.http_listen.clone_from(address);
        }
        if let Some(address) = &self.web_listen {
            settings.web_listen.clone_from(address);
        }
        if let Some(address) = &self.cas_listen {
            settings.cas_listen.clone_from(address);
        }
        if let Some(address) = &self.grpc_listen {
            settings.grpc_listen.clone_from(address);
        }
        if let Some(count) = self.executor_slots {
            settings.executor_slots = count;
        }
        if let Some(sandbox) = self.sandbox {
            settings.sandbox = sandbox;
        }
        if let Some(pool) = &self.pool {
            settings.pool.clone_from(pool);
        }
        if let Some(count) = self.workspaces {
            settings.workspaces = count;
        }
        if let Some(url) = &self.store {
            settings.cas_url.clone_from(url);
        }
    }
}

/// Runs the services until a stop signal, or until one fails; then the others stop too.
pub(crate) async fn run(
    args: &ServeArgs,
    globals: &Globals,
    mut settings: Settings,
) -> Result<ExitCode, Failure> {
    let patience = globals.wait()?.patience();
    (settings.nats_url, settings.redis_url) = globals.servers(&settings)?;
    args.apply(&mut settings);
    settings.check()?;
    args.prepare_descriptors(&settings);
    let stop = CancellationToken::new();
    stop_on_signals(&stop)?;
    stop_at_end(args.stop_at_eof, stop.clone());
    let mut running = JoinSet::new();
    for service in &args.services {
        running.spawn(run_one(*service, settings.clone(), patience, stop.clone()));
    }
    let mut first = None;
    while let Some(ended) = running.join_next().await {
        let ended = ended.unwrap_or_else(|error| Err(Failure::new(FAILED, "a service panicked", &error)));
        match (ended, &first) {
            (Ok(()), _) => {}
            (Err(failure), None) => {
                first = Some(failure);
                stop.cancel();
            }
            (Err(failure), Some(_)) => error!("{}", failure.line()),
        }
    }
    first.map_or(Ok(ExitCode::SUCCESS), Err)
}

async fn run_one(
    service: Service,
    settings: Settings,
    patience: Patience,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let name = service.name();
    let connected = tokio::select! {
        connected = Context::connect(settings.service(name), name, patience, stop.clone()) => connected,
        // Stopped while waiting for a server, so there is nothing to drain.
        () = stop.cancelled() => return Ok(()),
    };
    let context = connected.map_err(|error| failure(name, &ServiceError::Start(error)))?;
    service.run(context, &settings).await.map_err(|error| failure(name, &error))?;
    info!(service = name, "drained");
    Ok(())
}

fn failure(service: &str, error: &ServiceError) -> Failure {
    let code = match error {
        ServiceError::Start(start) if start.is_unreachable() => UNREACHABLE,
        ServiceError::Start(start) if start.is_misuse() => USAGE,
        ServiceError::Start(_) | ServiceError::Failed { .. } => FAILED,
    };
    Failure::new(code, service, error)
}

/// At the end of standard input, if that is wanted, the services drain.
fn stop_at_end(of_input: up::StopAtEof, stop: CancellationToken) {
    tokio::spawn(async move {
        of_input.reached().await;
        info!("standard input has ended, draining");
        stop.cancel();
    });
}

/// On the first SIGTERM or SIGINT the services drain; the second one ends the process immediately.
fn stop_on_signals(stop: &CancellationToken) -> Result<(), Failure> {
    let listen = |kind| {
        tokio::signal::unix::signal(kind)
            .map_err(|error| Failure::new(FAILED, "cannot listen for signals", &error))
    };
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let stop = stop.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        next().await;
        info!("received stop signal, draining; send it again to exit immediately");
        stop.cancel();
        next().await;
        std::process::exit(i32::from(FAILED));
    });
    Ok(())
}
