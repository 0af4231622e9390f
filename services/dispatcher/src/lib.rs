//! `dispatcher`: maintains the index, and offers waiting builds to idle workspaces.
//!
//! in: lifecycle events, heartbeats, quotas and the governor's decisions · out: offers to workers · Redis: the
//! whole index · decides with `policy::Allowance` (Algorithm 1), `policy::place` and `policy::workspace`

mod avoided;
mod dispatch;
mod error;
mod farm_metrics;
mod heads;
mod heartbeat;
mod offer;
mod projector;
mod records;
mod waits;
mod workers;

use std::sync::Arc;

use service::{Context, Ready, Running, ServiceError, follow_governance};
use settings::DispatcherSettings;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

use crate::workers::Workers;

/// Wake-ups between the loops of this process.
#[derive(Clone, Default)]
struct Wakes {
    /// A build may be ready for dispatch.
    dispatch: Arc<Notify>,
    /// The index was found missing.
    rebuild: Arc<Notify>,
}

/// Runs the service until it is asked to stop.
pub fn run(context: Context, settings: DispatcherSettings) -> Running {
    Box::pin(serve_all(context, Arc::new(settings)))
}

async fn serve_all(context: Context, settings: Arc<DispatcherSettings>) -> Result<(), ServiceError> {
    let index = context.index().await?;
    let wakes = Wakes::default();
    let workers = Workers::default();
    farm_metrics::report(&context.bus, &index, &workers);
    let (sender, governance) = watch::channel(None);
    let mut tasks = JoinSet::new();
    let woken = wakes.dispatch.clone();
    tasks.spawn(follow_governance(context.clone(), sender, move || woken.notify_one()));
    tasks.spawn(heartbeat::serve(context.clone(), index.clone(), wakes.clone(), workers.clone()));
    tasks.spawn(projector::run(
        context.clone(),
        settings.clone(),
        index.clone(),
        wakes.clone(),
        workers.clone(),
    ));
    tasks.spawn(dispatch::run(context.clone(), settings, index, wakes, workers, governance));
    context.ready(Ready::default()).await?;
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| ServiceError::failed("a loop of the dispatcher", error))??;
        if !context.stop.is_cancelled() {
            return Err(ServiceError::failed("the dispatcher", "a loop ended unexpectedly"));
        }
    }
    Ok(())
}
