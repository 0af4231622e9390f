//! `reaper`: requeues or ends builds that no other process will end.
//!
//! in: expired leases, the index's times · out: BUILD_ENQUEUED of the next attempt, or FINISHED · Redis: reads
//! times · decides with `policy::after_loss`

mod advisories;
mod bus_metrics;
mod expiry;
mod stale;
mod sweep;
mod verdict;

use service::{Context, Ready, Running, ServiceError};
use settings::ReaperSettings;
use tokio::task::JoinSet;

/// Runs the service until it is asked to stop.
pub fn run(context: Context, settings: ReaperSettings) -> Running {
    Box::pin(serve_all(context, settings))
}

async fn serve_all(context: Context, settings: ReaperSettings) -> Result<(), ServiceError> {
    let index = context.index().await?;
    bus_metrics::report(&context);
    verdict::expect_metrics();
    let mut tasks = JoinSet::new();
    tasks.spawn(advisories::count_all(context.clone()));
    tasks.spawn(expiry::serve(context.clone()));
    tasks.spawn(stale::run(context.clone()));
    tasks.spawn(sweep::run(context.clone(), settings, index));
    context.ready(Ready::default()).await?;
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| ServiceError::failed("a loop of the reaper", error))??;
    }
    Ok(())
}
