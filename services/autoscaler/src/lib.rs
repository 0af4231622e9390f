//! `autoscaler`: decides the target size of each pool, so that queued work starts in time (chapter 5 of the thesis).
//! `forebay up` or an orchestrator starts and stops the processes accordingly.
//!
//! in: lifecycle messages of builds, records of executions, the index's workers, executors and queues, quotas · out:
//! one plan for each pool and tick, by compare-and-set: with several autoscalers, one of them makes each; metrics ·
//! Redis: reads · decides with `policy::autoscale`

mod builds;
mod executions;
mod flow;
mod follow;
mod log_state;
mod pool;
mod processes;
mod quota;
mod scaling;
mod work;

use std::sync::Arc;

use model::ScaledPool;
use service::{Context, Ready, Running, ServiceError, follow_governance};
use settings::AutoscalerSettings;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

use crate::{
    follow::{SharedState, Wakes},
    pool::Shared,
};
pub use scaling::InvalidScaling;

/// Rejects settings of pools that the planner cannot use.
pub fn check(settings: &AutoscalerSettings) -> Result<(), InvalidScaling> {
    scaling::all(&settings.pools).map(drop)
}

/// Runs the service until it is asked to stop.
pub fn run(context: Context, settings: AutoscalerSettings) -> Running {
    Box::pin(serve_all(context, settings))
}

async fn serve_all(context: Context, settings: AutoscalerSettings) -> Result<(), ServiceError> {
    let pools = scaling::all(&settings.pools)
        .map_err(|error| ServiceError::failed("setting up the autoscaler", error))?;
    let (sender, governance) = watch::channel(None);
    let shared = Shared {
        context: context.clone(),
        index: context.index().await?,
        builds: SharedState::default(),
        executions: SharedState::default(),
        governance,
        settings: Arc::new(settings),
    };
    let mut tasks = JoinSet::new();
    let (mut builds, mut executions) = (Wakes::default(), Wakes::default());
    for (pool, planner) in &pools {
        let wake = Arc::new(Notify::new());
        match pool {
            ScaledPool::Workers => builds.add(&wake),
            ScaledPool::Executors(_) => executions.add(&wake),
        }
        tasks.spawn(pool::serve(shared.clone(), pool.clone(), *planner, wake));
    }
    // Only logs that a pool needs are followed.
    if !builds.is_empty() {
        let (known, index) = (shared.builds.clone(), shared.index.clone());
        tasks.spawn(follow_governance(context.clone(), sender, || ()));
        tasks.spawn(follow::builds(context.clone(), index, known, builds));
    }
    if !executions.is_empty() {
        tasks.spawn(follow::executions(
            context.clone(),
            shared.executions.clone(),
            shared.settings.clone(),
            executions,
        ));
    }
    context.ready(Ready::default()).await?;
    if pools.is_empty() {
        tracing::warn!("no pool is autoscaled: list the pools in the setting `autoscale`");
        context.stop.cancelled().await;
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| ServiceError::failed("a loop of the autoscaler", error))??;
        if !context.stop.is_cancelled() {
            return Err(ServiceError::failed("the autoscaler", "a loop ended unexpectedly"));
        }
    }
    Ok(())
}
