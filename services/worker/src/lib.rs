//! `worker`: runs builds, one in each of its workspaces.
//!
//! in: offers and orders · out: the lease, INVOCATION_STARTED, console and tool events, INVOCATION_FINISHED ·
//! Redis: none · decides with `policy::after_loss`

mod bazel;
mod claim;
mod command;
mod console;
mod control;
mod environment;
mod finish;
mod folder;
mod heartbeat;
mod lease_keeper;
mod offers;
mod outputs;
mod prepare;
mod run;
mod slot;
mod stop;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use model::{Millis, WorkerId};
use service::{Context, Ready, Running, ServiceError, StartError};
use store::Store;
use tokio::task::JoinSet;
use tracing::info;

use crate::{folder::WorkerFolder, slot::Slots};

/// What every part of the worker shares.
struct Shared {
    context: Context,
    id: WorkerId,
    host: String,
    started_at: Millis,
    store: Store,
    folder: WorkerFolder,
    slots: Slots,
    /// Where builds find the Remote Execution API, once it is known.
    grpc: OnceLock<String>,
}

/// Runs the service until it is told to stop and its builds have ended or were given back.
pub fn run(context: Context) -> Running {
    Box::pin(serve_all(context))
}

async fn serve_all(context: Context) -> Result<(), ServiceError> {
    // For archives by https; whoever was first stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let program =
        std::env::current_exe().map_err(|error| ServiceError::failed("finding our own program", error))?;
    let id: WorkerId = context
        .instance
        .parse()
        .map_err(|error: model::ParseIdError| ServiceError::failed("naming the worker", error))?;
    let store = context.store().await?;
    let root = context.data_folder("workspaces")?;
    let folder = WorkerFolder::create(&root, id.as_str()).map_err(|source| {
        ServiceError::Start(StartError::Write { path: root.display().to_string(), source })
    })?;
    bazel::install(&folder.programs()).map_err(|source| {
        ServiceError::Start(StartError::Write { path: root.display().to_string(), source })
    })?;
    let count = context.settings.workspace_count();
    let shared = Arc::new(Shared {
        context: context.clone(),
        id,
        host: host_name(),
        started_at: Millis::now(),
        store,
        folder,
        slots: Slots::new(count),
        grpc: OnceLock::new(),
    });
    let mut tasks = JoinSet::new();
    for number in 0..count {
        tasks.spawn(slot::serve(shared.clone(), number, program.clone()));
    }
    tasks.spawn(offers::serve(shared.clone()));
    tasks.spawn(control::serve(shared.clone()));
    tasks.spawn(heartbeat::serve(shared.clone()));
    context.ready(Ready::default()).await?;
    tokio::select! {
        () = context.stop.cancelled() => drain(&shared).await,
        Some(ended) = tasks.join_next() => {
            ended.map_err(|error| ServiceError::failed("a loop of the worker", error))??;
            return Err(ServiceError::failed("the worker", "a loop ended by itself"));
        }
    }
    heartbeat::say_gone(&shared).await;
    tasks.shutdown().await;
    shared.folder.remove();
    Ok(())
}

/// Takes nothing new, lets builds end for a while, then gives the others back.
async fn drain(shared: &Shared) {
    shared.slots.set_draining(true);
    heartbeat::send(shared).await;
    let limit = Duration::from_secs(shared.context.settings.drain_seconds);
    if tokio::time::timeout(limit, shared.slots.all_idle()).await.is_err() {
        info!("giving back the builds that still run");
        shared.slots.stop_all(stop::Cause::Drained);
        // Long enough for a build that ignores SIGTERM.
        let kill = Duration::from_millis(shared.context.settings.kill_grace_ms) + Duration::from_secs(5);
        let _ = tokio::time::timeout(kill, shared.slots.all_idle()).await;
    }
}

fn host_name() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "unknown".to_owned())
}
