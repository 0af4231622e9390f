//! `forebay serve`: one or more services in one process.

use std::process::ExitCode;

use bus::Patience;
use clap::{Args, ValueEnum};
use service::{Context, ServiceError};
use settings::Settings;
use tokio::{signal::unix::SignalKind, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::{
    failure::{FAILED, Failure, UNREACHABLE, USAGE},
    globals::Globals,
};

/// Options of `forebay serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Which services to run
    #[arg(required = true, value_name = "SERVICE")]
    services: Vec<Service>,
    /// Address of /metrics and /healthz, with port 0 any free one
    #[arg(long, value_name = "HOST:PORT")]
    metrics_listen: Option<String>,
    /// Address of the gateway's HTTP API
    #[arg(long, value_name = "HOST:PORT")]
    http_listen: Option<String>,
    /// Address of the Remote Execution API, for gateway and cas
    #[arg(long, value_name = "HOST:PORT")]
    grpc_listen: Option<String>,
    /// Actions that the executor runs at a time [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    executor_slots: Option<u16>,
    /// How the executor confines actions: bubblewrap or none
    #[arg(long, value_name = "HOW")]
    sandbox: Option<String>,
    /// The executor's pool
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Workspaces of the worker [default: two for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    workspaces: Option<u16>,
    #[arg(long, help = "Where blobs are kept, as file:///PATH", value_name = "URL")]
    store: Option<String>,
}

/// The services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Service {
    /// Checks build requests, queues them, and answers the API
    Enqueuer,
    /// Hands waiting builds to idle workspaces
    Dispatcher,
    /// Decides how much each quota group may have in progress
    Governor,
    /// Decides how many processes the pools of the setting `autoscale` should have
    Autoscaler,
    /// Learns from finished builds how much builds occupy
    Trainer,
    /// Runs builds
    Worker,
    /// Brings builds back whose worker was lost, and ends those that wait or run too long
    Reaper,
    /// Serves HTTP and the Remote Execution API
    Gateway,
    /// Hands waiting actions to executors
    Scheduler,
    /// Runs actions
    Executor,
    /// Keeps the content-addressable store within its size, and serves it alone
    Cas,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Self::Enqueuer => "enqueuer",
            Self::Dispatcher => "dispatcher",
            Self::Governor => "governor",
            Self::Autoscaler => "autoscaler",
            Self::Trainer => "trainer",
            Self::Worker => "worker",
            Self::Reaper => "reaper",
            Self::Gateway => "gateway",
            Self::Scheduler => "scheduler",
            Self::Executor => "executor",
            Self::Cas => "cas",
        }
    }

    async fn run(self, context: Context) -> Result<(), ServiceError> {
        match self {
            Self::Enqueuer => enqueuer::run(context).await,
            Self::Dispatcher => dispatcher::run(context).await,
            Self::Governor => governor::run(context).await,
            Self::Autoscaler => autoscaler::run(context).await,
            Self::Trainer => trainer::run(context).await,
            Self::Worker => worker::run(context).await,
            Self::Reaper => reaper::run(context).await,
            Self::Gateway => gateway::run(context).await,
            Self::Scheduler => scheduler::run(context).await,
            Self::Executor => executor::run(context).await,
            Self::Cas => cas_service::run(context).await,
        }
    }
}

impl ServeArgs {
    /// The service's name in logs and traces.
    pub(crate) fn name(&self) -> &'static str {
        match self.services.as_slice() {
            [one] => one.name(),
            _ => "serve",
        }
    }

    /// Raises the limit of open files where nothing inherits it: commands of builds and actions have the one that this process
    /// was given. Says so where it is low; a server of which it allows too few connections does not start.
    fn prepare_descriptors(&self, settings: &Settings) {
        let runs = |service| self.services.contains(&service);
        let (builds, actions) = (runs(Service::Worker), runs(Service::Executor));
        let found = if builds || actions { listener::descriptors() } else { listener::raise_descriptors() };
        let workspaces = if builds { settings.workspace_count() } else { 0 };
        let slots = if actions { settings.executor_slot_count() } else { 0 };
        let needed = policy::connections::descriptors_to_run(workspaces, slots);
        match found {
            Ok(limit) if limit.soft < needed => warn!(
                limit = limit.soft,
                needed, "few files may be open at a time; raise the limit (ulimit -n, LimitNOFILE=)"
            ),
            Ok(limit) => debug!(limit = limit.soft, "files that may be open"),
            Err(error) => warn!(%error, "the limit of open files cannot be raised"),
        }
    }

    /// Whether it is a service that does one thing after the other, which more threads would only pass around. There may
    /// be any number of its processes.
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
        if let Some(address) = &self.grpc_listen {
            settings.grpc_listen.clone_from(address);
        }
        if let Some(count) = self.executor_slots {
            settings.executor_slots = count;
        }
        if let Some(sandbox) = &self.sandbox {
            settings.sandbox.clone_from(sandbox);
        }
        if let Some(pool) = &self.pool {
            settings.pool.clone_from(pool);
        }
        if let Some(count) = self.workspaces {
            settings.workspaces = count;
        }
        if let Some(url) = &self.store {
            settings.store_url.clone_from(url);
        }
    }
}

/// Runs the services until they are told to stop, or until one fails: then the others stop too.
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
        connected = Context::connect(settings, name, patience, stop.clone()) => connected,
        // Told to stop while waiting for a server: there is nothing to drain.
        () = stop.cancelled() => return Ok(()),
    };
    let context = connected.map_err(|error| failure(name, &ServiceError::Start(error)))?;
    service.run(context).await.map_err(|error| failure(name, &error))?;
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

/// The first SIGTERM or SIGINT has the services drain; the second ends the process at once.
fn stop_on_signals(stop: &CancellationToken) -> Result<(), Failure> {
    let listen = |kind| {
        tokio::signal::unix::signal(kind)
            .map_err(|error| Failure::new(FAILED, "cannot listen to signals", &error))
    };
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let stop = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if stop.is_cancelled() {
                std::process::exit(i32::from(FAILED));
            }
            info!("told to stop: draining; once more ends at once");
            stop.cancel();
        }
    });
    Ok(())
}
