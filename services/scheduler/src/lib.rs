//! `scheduler`: keeps the index of actions, and grants executions to executors that have room.
//!
//! in: records of executions; heartbeats, leases and room of executors · out: grants and orders to executors; executions that are requeued, get another copy, or expire · Redis: the whole action
//! index · decides with `policy::actions`

mod ask;
mod dispatch;
mod due;
mod early;
mod farm_metrics;
mod floor;
mod grants;
mod heartbeat;
mod hedges;
mod learned;
mod losses;
mod messages;
mod overdue;
mod projector;
mod queues;
mod read;
mod recall;
mod records;
mod shared;
mod stale;
mod view;

use std::sync::Arc;

use service::{Context, Ready, Running, ServiceError, follow_governance};
use settings::SchedulerSettings;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

use shared::Shared;

/// Notifications between the tasks of the scheduler.
#[derive(Clone, Default)]
struct Wakes {
    /// An execution waits or is due, or an executor has room.
    dispatch: Arc<Notify>,
    /// The same, but another scheduler handles it unless it dies.
    check: Arc<Notify>,
    /// The index is missing and must be rebuilt.
    rebuild: Arc<Notify>,
    /// Executors should announce what they have.
    ask: Arc<Notify>,
    /// An execution has waited too long.
    overdue: Arc<Notify>,
    /// An execution runs long.
    hedge: Arc<Notify>,
    /// Executors may have been lost without a message.
    sweep: Arc<Notify>,
}

/// Runs the service until it is asked to stop.
pub fn run(context: Context, settings: SchedulerSettings) -> Running {
    Box::pin(serve_all(context, settings))
}

async fn serve_all(context: Context, settings: SchedulerSettings) -> Result<(), ServiceError> {
    let actions = context.index().await?.actions();
    let (governance, quotas) = watch::channel(None);
    let shared = Shared::new(context.clone(), &settings, actions, quotas);
    farm_metrics::report(&shared);
    let mut tasks = JoinSet::new();
    tasks.spawn(follow_governance(context.clone(), governance, || ()));
    tasks.spawn(heartbeat::serve(shared.clone()));
    tasks.spawn(heartbeat::follow(shared.clone()));
    tasks.spawn(messages::follow_rooms(shared.clone()));
    tasks.spawn(messages::follow_grants(shared.clone()));
    tasks.spawn(messages::follow_requeued(shared.clone()));
    tasks.spawn(messages::serve_returned(shared.clone()));
    tasks.spawn(projector::run(shared.clone()));
    tasks.spawn(recall::run(shared.clone()));
    tasks.spawn(losses::serve(shared.clone()));
    tasks.spawn(losses::sweep(shared.clone()));
    tasks.spawn(stale::run(shared.clone()));
    tasks.spawn(overdue::run(shared.clone()));
    tasks.spawn(hedges::run(shared.clone()));
    tasks.spawn(ask::run(context.clone(), shared.wakes.clone()));
    tasks.spawn(dispatch::run(shared));
    context.ready(Ready::default()).await?;
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| ServiceError::failed("a loop of the scheduler", error))??;
        if !context.stop.is_cancelled() {
            return Err(ServiceError::failed("the scheduler", "a loop ended unexpectedly"));
        }
    }
    Ok(())
}
