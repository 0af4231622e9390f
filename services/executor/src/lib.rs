//! `executor`: runs actions, each in a sandbox, several at a time.
//!
//! in: reservations, answers to claims, orders, questions for live output · out: claims, its lease, heartbeats, progress,
//! the ends of what it ran (`ACTION_FINISHED`, `ACTION_COPY_ENDED`, `ACTION_REQUEUED`) · CAS: inputs, outputs, the action cache ·
//! Redis: none
//!
//! Work is bound late: an executor is told what waits (`reservations`) and asks for it when it has room (`claims`).
//! How much room it has is a matter of sums (`room`) and of its congestion window (`admission`).
//!
//! One lease covers all that an executor has in hand. When it is lost, everything is killed and the executor
//! begins anew under another id.

mod admission;
mod capacity;
mod claims;
mod control;
mod execute;
mod finish;
mod folder;
mod hand_over;
mod hands;
mod heartbeat;
mod keeper;
mod limits;
mod live_output;
mod memory;
mod metadata;
mod outcome;
mod pace;
mod progress;
mod queue;
mod reservations;
mod room;
mod run;
mod sensors;
mod spec;
mod stages;
#[cfg(test)]
mod testing;
mod usage;

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bus::Subject;
use cas::Cas;
use input_root::{InputRoots, InputRootsConfig, Owner};
use model::{ExecutorHome, ExecutorId, Millis, Pool, PoolName};
use service::{Context, Ready, Running, ServiceError, StartError, host_name};
use tokio::{runtime::Handle, sync::Notify, task::JoinSet};
use tracing::{info, warn};

use crate::{
    admission::Admission, folder::ExecutorFolder, hands::Hands, memory::OomKills, queue::Queue, room::Room,
    stages::Stages, usage::Usage,
};

/// Where the kernel tells of itself.
const PROC: &str = "/proc";

/// What every part of one session shares.
struct Shared {
    context: Context,
    id: ExecutorId,
    home: ExecutorHome,
    host: String,
    /// With what this executor has as its capacity.
    pool: Pool,
    started_at: Millis,
    cas: Cas,
    inputs: InputRoots,
    hands: Hands,
    queue: Mutex<Queue>,
    /// A reservation came that counts only after a while.
    later: Notify,
    /// The lease says something that is not true any more.
    changed: Notify,
    cancelled: control::Cancelled,
    admission: Admission,
    stages: Stages,
    usage: Usage,
    oom: OomKills,
    /// Where everything runs but what slots do.
    main: Handle,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a session ended.
enum Ended {
    Stopped,
    LeaseLost,
}

/// Runs the service until it is told to stop and its actions have ended or were given back.
pub fn run(context: Context) -> Running {
    Box::pin(serve_all(context))
}

async fn serve_all(context: Context) -> Result<(), ServiceError> {
    let pool = pool(&context)?;
    let root = context.data_folder("executor")?;
    let unusable =
        |source| ServiceError::Start(StartError::Write { path: root.display().to_string(), source });
    let folder = ExecutorFolder::hold(&root).map_err(unusable)?;
    let home = folder.home().map_err(unusable)?;
    let cas = context.cas().await?;
    cas_service::keep_bounds(&context, &cas).await?;
    let uid = context.settings.action_uid;
    let owner = nix::unistd::geteuid().is_root().then_some(Owner { uid, gid: uid });
    let inputs = InputRoots::open(InputRootsConfig::new(cas.clone(), folder.roots(), owner))
        .map_err(|error| ServiceError::failed("preparing the folder of input roots", error))?;
    let stages = Stages::start(&context.settings, &folder, owner).await?;
    context.bus.announce_pool(&pool).await?;
    let mut first = true;
    loop {
        if let Some(before) = folder.predecessor() {
            // We hold its folder: it is dead, and what it had in hand may go elsewhere now.
            context.bus.revoke_lease(&before).await?;
        }
        let id = executor_id()?;
        folder.set_session(&id).map_err(unusable)?;
        let settings = &context.settings;
        let slots = settings.executor_slot_count();
        let all = Room::new(pool.capacity.clone(), slots, admission::window(settings));
        let sensors = sensors::all(settings, slots, Path::new(PROC), &root, folder.path());
        let shared = Arc::new(Shared {
            context: context.clone(),
            id,
            home: home.clone(),
            host: host_name(),
            pool: pool.clone(),
            started_at: context.bus.now(),
            cas: cas.clone(),
            inputs: inputs.clone(),
            hands: Hands::new(all, settings.starting_max),
            queue: Mutex::default(),
            later: Notify::new(),
            changed: Notify::new(),
            cancelled: control::Cancelled::default(),
            admission: Admission::new(settings, sensors),
            stages: stages.clone(),
            usage: Usage::new(settings.executor_type.clone()),
            oom: OomKills::new(Path::new(PROC)),
            main: Handle::current(),
        });
        match session(&shared, first).await? {
            Ended::Stopped => return Ok(()),
            Ended::LeaseLost => {
                warn!(executor = %shared.id, "the lease was lost: all actions were killed, beginning anew");
                first = false;
            }
        }
    }
}

async fn session(shared: &Arc<Shared>, first: bool) -> Result<Ended, ServiceError> {
    let mut keeper = keeper::Keeper::acquire(shared).await?;
    let mut tasks = JoinSet::new();
    let reservations = reservations::subscribe(shared).await?;
    admission::look(shared);
    tasks.spawn(reservations::serve(shared.clone(), reservations));
    tasks.spawn(admission::serve(shared.clone()));
    tasks.spawn(claims::serve(shared.clone()));
    tasks.spawn(control::serve(shared.clone()));
    tasks.spawn(live_output::serve(shared.clone()));
    tasks.spawn(heartbeat::serve(shared.clone()));
    tasks.spawn(usage::serve(shared.clone()));
    if first {
        shared.context.ready(Ready::default()).await?;
    }
    shared.context.bus.say_changed(&Subject::PoolChanged).await;
    let (pool, slots) = (&shared.pool, shared.hands.fullness().slots);
    info!(executor = %shared.id, pool = %pool.name, slots, capacity = %pool.capacity, "taking actions");
    shared.hands.room.notify_one();
    let ended = tokio::select! {
        () = shared.context.stop.cancelled() => {
            tokio::select! {
                () = drain(shared) => Ended::Stopped,
                () = keeper.lost() => Ended::LeaseLost,
            }
        }
        () = keeper.lost() => Ended::LeaseLost,
        Some(ended) = tasks.join_next() => {
            ended.map_err(|error| ServiceError::failed("a loop of the executor", error))??;
            return Err(ServiceError::failed("the executor", "a loop ended by itself"));
        }
    };
    match ended {
        Ended::LeaseLost => {
            shared.hands.set_draining(true);
            shared.hands.stop_all();
            shared.hands.all_done().await;
            tasks.shutdown().await;
            // Told to stop meanwhile: there is nothing left to do.
            Ok(if shared.context.stop.is_cancelled() { Ended::Stopped } else { Ended::LeaseLost })
        }
        Ended::Stopped => {
            heartbeat::say_gone(shared).await;
            keeper.release().await;
            shared.context.bus.say_changed(&Subject::PoolChanged).await;
            tasks.shutdown().await;
            Ok(Ended::Stopped)
        }
    }
}

/// Takes nothing new, gives back what has not begun, lets the others end for a while, then kills them: they are queued again
/// when the lease goes.
async fn drain(shared: &Shared) {
    shared.hands.set_draining(true);
    heartbeat::send(shared).await;
    hand_over::all(shared).await;
    let limit = Duration::from_secs(shared.context.settings.drain_seconds);
    if tokio::time::timeout(limit, shared.hands.all_done()).await.is_err() {
        info!("giving back the actions that still run");
        shared.hands.stop_all();
        let _ = tokio::time::timeout(Duration::from_secs(5), shared.hands.all_done()).await;
    }
}

/// The pool as the settings say it, checked.
fn pool(context: &Context) -> Result<Pool, ServiceError> {
    let settings = &context.settings;
    let name: PoolName = settings
        .pool
        .parse()
        .map_err(|error: model::ParseIdError| ServiceError::failed("the setting pool", error))?;
    Ok(Pool {
        name,
        properties: settings.pool_properties.clone(),
        root_is_input: settings.pool_root_is_input,
        capacity: capacity::capacity(settings, Path::new(PROC))?,
    })
}

fn executor_id() -> Result<ExecutorId, ServiceError> {
    let random = uuid::Uuid::new_v4().simple().to_string();
    let text = format!("executor-{}", random.get(..12).unwrap_or_default());
    text.parse().map_err(|error: model::ParseIdError| ServiceError::failed("naming the executor", error))
}
