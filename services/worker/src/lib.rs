//! `worker`: runs builds, one in each of its workspaces.
//!
//! in: offers and orders · out: the lease, INVOCATION_STARTED, console and tool events, INVOCATION_FINISHED · Redis:
//! none · decides with `policy::after_loss`

mod admission;
mod bazel;
mod build_run;
mod build_secrets;
mod claim;
mod command;
mod console;
mod control;
mod disk_limit;
mod disk_watch;
mod ending;
mod environment;
mod event_stream;
mod faults;
mod finish;
mod folder;
mod frames;
mod gateway;
mod git;
mod guard;
mod heartbeat;
mod home;
mod image;
mod isolation;
mod job;
mod lease_keeper;
mod limits;
mod masking;
mod memory;
mod offered;
mod offers;
mod outputs;
mod owner;
mod prepare;
mod prepare_step;
mod preparing;
mod relay;
mod run;
mod search_path;
mod secret_files;
mod secret_store;
mod secret_watch;
mod sensor_readings;
mod services;
mod shared;
mod sources;
mod stall;
mod stop;
mod store_watch;
mod sync;
mod take_secrets;
#[cfg(test)]
mod testing;
mod tool_events;
mod usage;
mod warm;
mod workspace;
mod workspace_loop;
mod workspace_shim;
mod workspaces;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use model::{Offers, WorkerId, WorkerProperties};
use sandbox::{Cgroups, Parent, WorkspaceLimits};
use sensors::{MachineLock, OomKills};
use service::{
    Context, Ready, Running, ServiceError, StartError, Subscription, host_name, report_disk,
    send_final_heartbeat, send_heartbeat, serve_heartbeats,
};
use settings::WorkerSettings;
use telemetry::metrics::{Counter, Label, expect};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::{
    folder::WorkerFolder, gateway::Gateways, image::BuildImages, isolation::Isolation, offered::Offered,
    owner::WorkspaceUsers, secret_files::SecretMemory, secret_store::SecretStore, shared::Shared,
    sources::Sources, usage::Usage, workspaces::Workspaces,
};

/// Mount point of the kernel's process information.
const PROC: &str = "/proc";
/// Time limit for all workspaces to close at shutdown.
const CLOSING: Duration = Duration::from_secs(2);

/// Runs the service until it is stopped and its builds have ended or were requeued.
pub fn run(context: Context, settings: WorkerSettings) -> Running {
    Box::pin(serve_all(context, settings))
}

async fn serve_all(context: Context, settings: WorkerSettings) -> Result<(), ServiceError> {
    for call in ["claim", "finish"] {
        expect(Counter::ApiRequests, &[(Label::Endpoint, call), (Label::Status, "unavailable")]);
    }
    expect(Counter::BuildsRequeued, &[(Label::Reason, "given_back")]);
    keep_memory_private();
    let program = std::env::current_exe()
        .map_err(|error| ServiceError::failed("finding the path of this executable", error))?;
    let id: WorkerId = context
        .instance
        .parse()
        .map_err(|error: model::ParseIdError| ServiceError::failed("naming the worker", error))?;
    let cas = context.cas_with_small_caches().await?;
    store_bounds::keep_bounds(&context, &cas).await?;
    let root = context.data_folder("workspaces")?;
    report_disk("workspaces", root.clone());
    let folder = WorkerFolder::create(&root, id.as_str()).map_err(|source| {
        ServiceError::Start(StartError::Write { path: root.display().to_string(), source })
    })?;
    bazel::install(&folder.programs(), settings.gateway_authorities.as_deref()).map_err(|source| {
        ServiceError::Start(StartError::Write { path: root.display().to_string(), source })
    })?;
    let machine = MachineLock::open(&settings.machine_lock)
        .map_err(|error| ServiceError::failed("opening the lock of the machine (machine_lock)", error))?;
    let isolation = Isolation::new(&settings, &folder, &program).await?;
    let images =
        if isolation.is_supported() { BuildImages::open(&context, &settings, &cas).await? } else { None };
    let mut properties = isolation.properties(&settings.properties);
    if images.is_some() {
        BuildImages::offer(&mut properties);
    }
    let (offered, secret_memory) = open_secrets(&settings, &isolation, properties)?;
    context.bus.buckets().announce_worker(&offered.properties()).await?;
    let count = settings.workspaces;
    let cgroups = Cgroups::detect(&Parent::default());
    cgroups.sweep();
    let shared = Arc::new(Shared {
        context: context.clone(),
        id,
        host: host_name(),
        started_at: context.bus.now(),
        cas,
        zones: context.zones()?,
        folder,
        workspaces: Workspaces::new(count, sensors::window(&settings.sensors, count, settings.window_growth)),
        oom: OomKills::new(Path::new(PROC)),
        machine,
        usage: Usage::new(settings.executor_type.clone()),
        gateways: Gateways::default(),
        isolation,
        program,
        cgroups,
        images,
        offered,
        secret_memory,
        build_tokens: context.build_tokens()?,
        sources: Sources::new(&settings.contexts, &context.settings.store.data, settings.secrets.as_deref()),
        settings,
    });
    let mut workspace_loops = start_workspaces(&shared);
    // Before the first heartbeat: a dispatcher counts a worker as gone that does not listen.
    let offers = Subscription::<Offers>::new(&shared.context.bus, &shared.id).await?;
    let mut tasks = start_tasks(&shared, root, offers);
    context.ready(Ready::default()).await?;
    tokio::select! {
        () = context.stop.cancelled() => drain(&shared).await,
        Some(ended) = tasks.join_next() => return Err(ended_early(ended)),
        Some(ended) = workspace_loops.join_next() => return Err(ended_early(ended)),
    }
    // A heartbeat after the final one would keep the departed worker in the index until its TTL ends.
    tasks.shutdown().await;
    send_final_heartbeat(&*shared).await;
    // Workspaces close together with the processes they keep; those that do not end now die with this process.
    shared.workspaces.closing.cancel();
    let _ =
        tokio::time::timeout(CLOSING, async { while workspace_loops.join_next().await.is_some() {} }).await;
    workspace_loops.shutdown().await;
    shared.folder.remove();
    Ok(())
}

/// Keeps the memory of this process, which has keys of the farm and secrets of builds, out of core dumps, and other processes of
/// its user from reading it and its environment. Programs that it starts are not affected.
fn keep_memory_private() {
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        warn!(%error, "the memory of this process may be written into a core dump");
    }
}

/// What the worker offers, with the secrets of its builds.
fn open_secrets(
    settings: &WorkerSettings,
    isolation: &Isolation,
    properties: WorkerProperties,
) -> Result<(Offered, Option<SecretMemory>), ServiceError> {
    let Some(folder) = &settings.secrets else { return Ok((Offered::new(properties, None)?, None)) };
    isolation.check_secrets()?;
    let store = SecretStore::open(folder, &settings.contexts.context_paths)?;
    let memory = SecretMemory::create().map_err(|error| {
        ServiceError::failed("preparing memory for the secrets of builds (secrets_folder)", error)
    })?;
    Ok((Offered::new(properties, Some(store))?, Some(memory)))
}

/// Starts the loops that are not of one workspace; `root` contains the workspaces.
fn start_tasks(
    shared: &Arc<Shared>,
    root: PathBuf,
    offers: Subscription<Offers>,
) -> JoinSet<Result<(), ServiceError>> {
    let mut tasks = JoinSet::new();
    tasks.spawn(offers::serve(shared.clone(), offers));
    tasks.spawn(control::serve(shared.clone()));
    tasks.spawn(serve_heartbeats(shared.clone()));
    tasks.spawn(follow_gateways(shared.clone()));
    tasks.spawn(memory::serve(shared.clone()));
    tasks.spawn(disk_watch::serve(shared.clone()));
    tasks.spawn(disk_limit::serve(shared.clone()));
    tasks.spawn(sensor_readings::serve(shared.clone(), root));
    tasks.spawn(store_watch::serve(shared.clone()));
    tasks.spawn(secret_watch::serve(shared.clone()));
    tasks.spawn(report_usage(shared.clone()));
    tasks
}

fn start_workspaces(shared: &Arc<Shared>) -> JoinSet<Result<(), ServiceError>> {
    let mut loops = JoinSet::new();
    for number in 0..shared.settings.workspaces {
        let name = format!("worker-{}-{number}", std::process::id());
        let own = WorkspaceUsers::of(&shared.settings, number).own;
        let limits = Arc::new(WorkspaceLimits::new(&shared.cgroups, &name, own.is_some()));
        loops.spawn(workspace_loop::serve(shared.clone(), number, shared.program.clone(), limits));
    }
    loops
}

async fn follow_gateways(shared: Arc<Shared>) -> Result<(), ServiceError> {
    shared.gateways.follow(&shared.context.bus).await
}

async fn report_usage(shared: Arc<Shared>) -> Result<(), ServiceError> {
    shared.usage.serve(&shared.context.bus, &shared.id).await
}

/// The error that a loop's unexpected end is reported as.
fn ended_early(ended: Result<Result<(), ServiceError>, tokio::task::JoinError>) -> ServiceError {
    match ended {
        Err(error) => ServiceError::failed("a loop of the worker", error),
        Ok(Err(error)) => error,
        Ok(Ok(())) => ServiceError::failed("the worker", "a loop ended unexpectedly"),
    }
}

/// Stops accepting offers, lets running builds finish until the drain time is over, then requeues the rest.
async fn drain(shared: &Shared) {
    shared.workspaces.set_draining(true);
    send_heartbeat(shared).await;
    let settings = &shared.settings;
    if tokio::time::timeout(settings.drain, shared.workspaces.all_idle()).await.is_err() {
        info!("drain time is over: requeueing the builds that still run");
        shared.workspaces.stop_all(stop::Cause::Drained);
        // Leaves enough time to kill a build that ignores SIGTERM. A build that needs longer dies with this process.
        let kill = settings.kill_grace + Duration::from_secs(5);
        let _ = tokio::time::timeout(kill, shared.workspaces.all_idle()).await;
    }
}
