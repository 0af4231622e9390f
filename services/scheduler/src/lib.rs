//! `scheduler`: keeps the index of actions, and hands waiting executions to executors with free slots.
//!
//! in: records of executions, executors' heartbeats and leases · out: offers and orders to executors, ACTION_REQUEUED,
//! ACTION_FINISHED of what nobody can run · Redis: everything of the action index · decides with `policy::actions`

mod ask;
mod brief;
mod dispatch;
mod floor;
mod heartbeat;
mod losses;
mod offer;
mod overdue;
mod projector;

use std::sync::Arc;

use service::{Context, Ready, Running, ServiceError};
use tokio::{sync::Notify, task::JoinSet};

/// What wakes whom inside the process.
#[derive(Clone, Default)]
struct Wakes {
    /// Something may be dispatched.
    dispatch: Arc<Notify>,
    /// The index was found missing.
    rebuild: Arc<Notify>,
    /// Executors should say what they have.
    ask: Arc<Notify>,
    /// Something has waited too long.
    overdue: Arc<Notify>,
    /// Executors may have been lost unheard.
    sweep: Arc<Notify>,
}

/// Runs the service until it is told to stop.
pub fn run(context: Context) -> Running {
    Box::pin(serve_all(context))
}

async fn serve_all(context: Context) -> Result<(), ServiceError> {
    let actions = context.index().await?.actions();
    let wakes = Wakes::default();
    let mut tasks = JoinSet::new();
    tasks.spawn(heartbeat::serve(context.clone(), actions.clone(), wakes.clone()));
    tasks.spawn(projector::run(context.clone(), actions.clone(), wakes.clone()));
    tasks.spawn(losses::serve(context.clone(), actions.clone()));
    tasks.spawn(losses::sweep(context.clone(), actions.clone(), wakes.clone()));
    tasks.spawn(overdue::run(context.clone(), actions.clone(), wakes.clone()));
    tasks.spawn(ask::run(context.clone(), wakes.clone()));
    tasks.spawn(dispatch::run(context.clone(), actions, wakes));
    context.ready(Ready::default()).await?;
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| ServiceError::failed("a loop of the scheduler", error))??;
        if !context.stop.is_cancelled() {
            return Err(ServiceError::failed("the scheduler", "a loop ended by itself"));
        }
    }
    Ok(())
}
