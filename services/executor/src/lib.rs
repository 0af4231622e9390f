//! `executor`: runs actions, each in a sandbox, several at a time.
//!
//! in: offers, orders, questions for live output · out: its lease, progress, ACTION_FINISHED · CAS: inputs, outputs,
//! the action cache · Redis: none
//!
//! One lease covers all that an executor has in hand. When it is lost, everything is killed and the executor
//! begins anew under another id.

mod control;
mod finish;
mod folder;
mod hands;
mod heartbeat;
mod keeper;
mod live_output;
mod metadata;
mod offers;
mod outcome;
mod progress;
mod run;
mod spec;
mod stages;
mod usage;

use std::{sync::Arc, time::Duration};

use cas::Cas;
use input_root::{InputRoots, InputRootsConfig, Owner};
use model::{ExecutorId, Millis, Pool, PoolName};
use service::{Context, Ready, Running, ServiceError, StartError};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::{folder::ExecutorFolder, hands::Hands, stages::Stages, usage::Usage};

/// What every part of one session shares.
struct Shared {
    context: Context,
    id: ExecutorId,
    host: String,
    pool: Pool,
    started_at: Millis,
    cas: Cas,
    inputs: InputRoots,
    hands: Hands,
    stages: Stages,
    usage: Usage,
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
    let cas = context.cas()?;
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
        let shared = Arc::new(Shared {
            context: context.clone(),
            id,
            host: host_name(),
            pool: pool.clone(),
            started_at: Millis::now(),
            cas: cas.clone(),
            inputs: inputs.clone(),
            hands: Hands::new(context.settings.executor_slot_count()),
            stages: stages.clone(),
            usage: Usage::new(context.settings.executor_type.clone()),
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
    let offers = offers::subscribe(shared).await?;
    tasks.spawn(offers::serve(shared.clone(), offers));
    tasks.spawn(control::serve(shared.clone()));
    tasks.spawn(live_output::serve(shared.clone()));
    tasks.spawn(heartbeat::serve(shared.clone()));
    tasks.spawn(usage::serve(shared.clone()));
    if first {
        shared.context.ready(Ready::default()).await?;
    }
    info!(executor = %shared.id, pool = %shared.pool.name, slots = shared.hands.slots(), "taking actions");
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
            tasks.shutdown().await;
            Ok(Ended::Stopped)
        }
    }
}

/// Takes nothing new, lets actions end for a while, then kills the others: they are queued again when the lease goes.
async fn drain(shared: &Shared) {
    shared.hands.set_draining(true);
    heartbeat::send(shared).await;
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
    })
}

fn executor_id() -> Result<ExecutorId, ServiceError> {
    let random = uuid::Uuid::new_v4().simple().to_string();
    let text = format!("executor-{}", random.get(..12).unwrap_or_default());
    text.parse().map_err(|error: model::ParseIdError| ServiceError::failed("naming the executor", error))
}

fn host_name() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "unknown".to_owned())
}
