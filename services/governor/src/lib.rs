//! `governor`: decides how much each quota group may have in progress.
//!
//! in: quotas, usage reports, heartbeats of executors, the queues of builds and actions · out: one decision each tick, by
//! compare-and-set: with several governors, one of them makes each · Redis: reads queues · decides with `policy::govern`

mod executors;
mod looks;
mod quota_metrics;
mod tick;
mod usage;

use service::{Context, Ready, Running, ServiceError, follow_governance};
use settings::GovernorSettings;
use tokio::{sync::watch, task::JoinSet};

use crate::{executors::Executors, usage::Usage};

/// Runs the service until it is asked to stop.
pub fn run(context: Context, settings: GovernorSettings) -> Running {
    Box::pin(serve_all(context, settings))
}

async fn serve_all(context: Context, settings: GovernorSettings) -> Result<(), ServiceError> {
    let control = tick::control(&settings)?;
    let index = context.index().await?;
    let (usage, executors) = (Usage::default(), Executors::default());
    let (sender, governance) = watch::channel(None);
    let mut tasks = JoinSet::new();
    tasks.spawn(follow_governance(context.clone(), sender, || ()));
    tasks.spawn(quota_metrics::follow(context.clone(), governance.clone()));
    tasks.spawn(usage::serve(context.clone(), usage.clone()));
    tasks.spawn(executors::follow(context.clone(), executors.clone()));
    let sources = tick::Sources { index, usage, executors, governance };
    tasks.spawn(tick::serve(context.clone(), settings, control, sources));
    context.ready(Ready::default()).await?;
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| ServiceError::failed("a loop of the governor", error))??;
        if !context.stop.is_cancelled() {
            return Err(ServiceError::failed("the governor", "a loop ended unexpectedly"));
        }
    }
    Ok(())
}
