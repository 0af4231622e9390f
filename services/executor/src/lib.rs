//! `executor`: runs actions, each in a sandbox, several at a time.
//!
//! Inputs: grants, control messages, requests for live output. Outputs: reports of room, the lease, heartbeats,
//! progress, the ends of executions (`ACTION_FINISHED`, `ACTION_COPY_ENDED`, `ACTION_REQUEUED`). CAS:
//! inputs, outputs, the action cache. Redis is not used.
//!
//! Work is assigned late: an executor reports the room that it has (`room`, and in each record that it writes), and
//! schedulers grant it executions for this room (`grants`). The room depends on free resources (`allocation`) and on
//! the congestion window (`admission`).
//!
//! One lease covers all actions that an executor holds. When the lease is lost, all of them are killed and the
//! executor starts again with a new id.

mod admission;
mod allocation;
mod cancelled;
mod capacity;
mod completion_rate;
mod control;
mod devices;
mod execute;
mod finish;
mod folder;
mod grants;
mod hand_over;
mod heartbeat;
mod held_actions;
mod image;
mod interactor;
mod interference;
mod keeper;
mod limits;
mod live_output;
mod memory;
mod metadata;
mod needed_images;
mod outcome;
mod place;
mod processors;
mod progress;
mod provenance;
mod room;
mod run;
mod sensor_readings;
mod services;
mod serving;
mod shared;
mod shared_services;
mod slot_threads;
mod spec;
mod split;
#[cfg(test)]
mod testing;
mod usage;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use ::images::Images;
use bus::Subject;
use input_root::{InputRoots, InputRootsConfig, Owner};
use model::{ExecutorId, Pool, PoolName};
use policy::{
    CORES_OFFER,
    actions::{IMAGE_OFFER, INTERACTOR_OFFER, SERVICES_OFFER, WRITABLE_ROOT, network},
};
use sandbox::{Cgroups, Parent};
use sensors::{MachineLock, OomKills, Sensors};
use service::{
    Context, Ready, Running, ServiceError, StartError, host_name, report_disk, report_usage,
    send_final_heartbeat, send_heartbeat, serve_heartbeats,
};
use settings::{ExecutorSettings, SandboxKind, SlotCores};
use tokio::{runtime::Handle, sync::Notify, task::JoinSet};
use tracing::{info, warn};

use crate::{
    admission::Admission, allocation::Allocation, cancelled::Cancelled, devices::Devices,
    folder::ExecutorFolder, held_actions::HeldActions, shared::Shared, shared_services::SharedServicesHere,
    slot_threads::SlotThreads, usage::Usage,
};

/// Mount point of the kernel's process information.
const PROC: &str = "/proc";

/// Whether an executor that is started like this process keeps commands on the processors of their slot (`slot_cores`).
pub fn binds_cores() -> bool {
    Cgroups::default().with_cpuset(&Parent::default()).binds_cores()
}

/// The reason for the end of a session.
enum SessionEnd {
    Stopped,
    LeaseLost,
}

/// Runs the service until it is stopped and its actions have ended or were returned.
pub fn run(context: Context, settings: ExecutorSettings) -> Running {
    Box::pin(serve_all(context, Arc::new(settings)))
}

async fn serve_all(context: Context, settings: Arc<ExecutorSettings>) -> Result<(), ServiceError> {
    let mut pool = pool(&settings)?;
    let root = context.data_folder("executor")?;
    report_disk("executor", root.clone());
    let unusable =
        |source| ServiceError::Start(StartError::Write { path: root.display().to_string(), source });
    let uid = settings.action_uid;
    let owner = nix::unistd::geteuid().is_root().then_some(Owner { uid, gid: uid });
    let folder = ExecutorFolder::hold(&root, owner).map_err(unusable)?;
    let home = folder.home().map_err(unusable)?;
    let machine = MachineLock::open(&settings.machine_lock)
        .map_err(|error| ServiceError::failed("opening the lock of the machine (machine_lock)", error))?;
    let cas = context.cas().await?;
    store_bounds::keep_bounds(&context, &cas).await?;
    let inputs = InputRoots::open(InputRootsConfig::new(cas.clone(), folder.roots(), owner))
        .map_err(|error| ServiceError::failed("preparing the directory of input roots", error))?;
    let images = image::open(&context, &settings, &cas).await?;
    if !pool.root_is_input && images.as_ref().is_some_and(Images::overlays) && owner.is_some() {
        offer(&mut pool.properties, WRITABLE_ROOT);
    }
    let devices = Arc::new(Devices::new(
        settings.devices.clone(),
        settings.device_variables.clone(),
        settings.sandbox == SandboxKind::Bubblewrap,
    )?);
    let slot_threads = SlotThreads::start(&settings, &folder, owner).await?;
    context.bus.buckets().announce_pool(&pool).await?;
    let mut first = true;
    loop {
        if let Some(before) = folder.predecessor() {
            // This process holds the directory lock, so the predecessor is dead and its actions can run elsewhere.
            context.bus.leases().revoke(&before).await?;
        }
        let id = executor_id(&context)?;
        folder.set_session(&id).map_err(unusable)?;
        let all = Allocation::new(
            pool.capacity.clone(),
            settings.slots,
            settings.emergency_slots,
            sensors::window(&settings.sensors, settings.slots, Duration::ZERO),
        );
        let sensors = Sensors::new(&settings.sensors, Path::new(PROC), folder.path(), settings.slots)
            .with_disk(&root, settings.sensors.disk_left_percent)
            .with_starting(settings.starting_max)
            .with_lock(&machine);
        let shared = Arc::new(Shared {
            context: context.clone(),
            settings: settings.clone(),
            id,
            home: home.clone(),
            host: host_name(),
            pool: pool.clone(),
            started_at: context.bus.now(),
            cas: cas.clone(),
            inputs: inputs.clone(),
            devices: devices.clone(),
            images: images.clone(),
            actions: HeldActions::new(all, settings.starting_max),
            changed: Notify::new(),
            cancelled: Cancelled::default(),
            confirming: AtomicBool::new(false),
            admission: Admission::new(settings.sensors.tick, sensors),
            slot_threads: slot_threads.clone(),
            services_here: SharedServicesHere::default(),
            usage: Usage::new(settings.executor_type.clone()),
            oom: OomKills::new(Path::new(PROC)),
            machine: machine.clone(),
            main: Handle::current(),
        });
        match session(&shared, first).await? {
            SessionEnd::Stopped => return Ok(()),
            SessionEnd::LeaseLost => {
                warn!(executor = %shared.id, "lease lost: all actions were killed; starting a new session");
                first = false;
            }
        }
    }
}

async fn session(shared: &Arc<Shared>, first: bool) -> Result<SessionEnd, ServiceError> {
    let mut keeper = keeper::Keeper::acquire(shared).await?;
    let mut tasks = JoinSet::new();
    let granted = grants::subscribe(shared).await?;
    sensor_readings::read(shared);
    tasks.spawn(grants::serve(shared.clone(), granted));
    tasks.spawn(sensor_readings::serve(shared.clone()));
    tasks.spawn(room::serve(shared.clone()));
    tasks.spawn(control::serve(shared.clone()));
    tasks.spawn(control::serve_jobs(shared.clone()));
    tasks.spawn(image::serve(shared.clone()));
    tasks.spawn(live_output::serve(shared.clone()));
    tasks.spawn(serve_heartbeats(shared.clone()));
    tasks.spawn(serve_usage(shared.clone()));
    if first {
        shared.context.ready(Ready::default()).await?;
    }
    shared.context.bus.say_changed(&Subject::PoolChanged).await;
    let (pool, slots) = (&shared.pool, shared.actions.load().slots);
    info!(executor = %shared.id, pool = %pool.name, slots, capacity = %pool.capacity, "accepting actions");
    let ended = tokio::select! {
        () = shared.context.stop.cancelled() => {
            tokio::select! {
                () = drain(shared) => SessionEnd::Stopped,
                () = keeper.lost() => SessionEnd::LeaseLost,
            }
        }
        () = keeper.lost() => SessionEnd::LeaseLost,
        Some(ended) = tasks.join_next() => {
            ended.map_err(|error| ServiceError::failed("a loop of the executor", error))??;
            return Err(ServiceError::failed("the executor", "a loop ended unexpectedly"));
        }
    };
    match ended {
        SessionEnd::LeaseLost => {
            shared.actions.set_draining(true);
            shared.actions.stop_all();
            shared.actions.all_done().await;
            tasks.shutdown().await;
            // If the stop signal came in the meantime, there is nothing left to do.
            Ok(if shared.context.stop.is_cancelled() { SessionEnd::Stopped } else { SessionEnd::LeaseLost })
        }
        SessionEnd::Stopped => {
            send_final_heartbeat(&**shared).await;
            keeper.release().await;
            shared.context.bus.say_changed(&Subject::PoolChanged).await;
            tasks.shutdown().await;
            Ok(SessionEnd::Stopped)
        }
    }
}

async fn serve_usage(shared: Arc<Shared>) -> Result<(), ServiceError> {
    report_usage(&shared.usage, &shared.context.bus, shared.id.as_str()).await
}

/// Stops accepting work, returns the actions that have not started, lets the others end for a while, then kills them.
/// They are requeued when the lease is released.
async fn drain(shared: &Shared) {
    shared.actions.set_draining(true);
    send_heartbeat(shared).await;
    hand_over::all(shared).await;
    if tokio::time::timeout(shared.settings.drain, shared.actions.all_done()).await.is_err() {
        info!("killing and requeueing the actions that still run");
        shared.actions.stop_all();
        // Actions that do not end in this time are requeued like those that do.
        let _ = tokio::time::timeout(Duration::from_secs(5), shared.actions.all_done()).await;
    }
}

/// The pool according to the settings, validated.
fn pool(settings: &ExecutorSettings) -> Result<Pool, ServiceError> {
    let name: PoolName = settings
        .pool
        .parse()
        .map_err(|error: model::ParseIdError| ServiceError::failed("the setting pool", error))?;
    Ok(Pool {
        name,
        properties: properties(settings),
        root_is_input: settings.pool_root_is_input,
        capacity: capacity::capacity(settings, Path::new(PROC))?,
        executor_type: settings.executor_type.clone(),
    })
}

/// The offered platform properties, with what the settings give to actions: the network, images, services, interactors,
/// and cores of their own.
fn properties(settings: &ExecutorSettings) -> BTreeMap<String, Vec<String>> {
    let mut properties = settings.pool_properties.clone();
    // Where the input root is `/`, there is no place for an image or for the folders of other commands.
    let images = settings.images.is_some() && !settings.pool_root_is_input;
    let services = settings.sandbox == SandboxKind::Bubblewrap && !settings.pool_root_is_input;
    for (offered, (name, value)) in [
        (settings.action_network, network::OFFER),
        (images, IMAGE_OFFER),
        (services, SERVICES_OFFER),
        (services, INTERACTOR_OFFER),
        (settings.slot_cores != SlotCores::Shared, CORES_OFFER),
    ] {
        if offered {
            offer(&mut properties, (name, value));
        }
    }
    properties
}

fn offer(properties: &mut BTreeMap<String, Vec<String>>, (name, value): (&str, &str)) {
    let values = properties.entry(name.to_owned()).or_default();
    values.retain(|other| other != value);
    values.push(value.to_owned());
}

fn executor_id(context: &Context) -> Result<ExecutorId, ServiceError> {
    let text = context.another_instance()?;
    text.parse().map_err(|error: model::ParseIdError| ServiceError::failed("naming the executor", error))
}
