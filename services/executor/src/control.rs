//! Control messages to this executor: cancel, drain and resume.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use model::{ExecutionKey, ExecutorControl};
use service::ServiceError;
use tracing::{debug, info};

use crate::{Shared, hand_over, heartbeat};

/// Handles control messages until the session ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        ServiceError::failed("subscribing to control messages", error)
    };
    let subscribed = shared.context.bus.listen::<ExecutorControl>(&shared.id).await;
    let mut orders = subscribed.map_err(|error| failed(Box::new(error)))?;
    while let Some(order) = orders.next().await {
        match order.content {
            ExecutorControl::Cancel { execution } => {
                tokio::spawn(cancel(shared.clone(), execution));
            }
            ExecutorControl::Drain => {
                info!("draining: accepting no new actions");
                shared.actions.set_draining(true);
                shared.changed.notify_one();
                // The heartbeat goes first, so that schedulers do not assign the returned actions
                // to this executor again.
                heartbeat::send(&shared).await;
                hand_over::all(&shared).await;
            }
            ExecutorControl::Resume => {
                info!("accepting actions again");
                shared.actions.set_draining(false);
                shared.changed.notify_one();
            }
        }
    }
    Err(failed("the subscription ended".into()))
}

/// Kills an action at once. Its result is not wanted, so it gets no time to end on its own.
pub(crate) async fn cancel(shared: Arc<Shared>, execution: ExecutionKey) {
    if !shared.actions.has(&execution) {
        // Its claim may still be on the way to this executor.
        shared.cancelled.note(execution);
        return;
    }
    // The stored record decides whether it is over, not the message.
    match shared.context.bus.latest_execution(&execution).await {
        Ok(Some((_, record))) if record.outcome().is_none() => {
            debug!(%execution, "ignoring the cancellation of an action that is still wanted");
        }
        Ok(_) => shared.actions.stop(&execution),
        Err(error) => debug!(%execution, %error, "cannot check yet whether the action is over"),
    }
}

/// Recently cancelled executions that were not held here: a cancellation may overtake the claim of its action.
#[derive(Debug, Default)]
pub(crate) struct Cancelled(Mutex<VecDeque<(Instant, ExecutionKey)>>);

/// How long a cancellation is remembered: claims arrive sooner.
const ON_ITS_WAY: Duration = Duration::from_secs(5);

impl Cancelled {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Instant, ExecutionKey)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, execution: ExecutionKey) {
        let mut all = self.lock();
        while all.front().is_some_and(|(at, _)| at.elapsed() > ON_ITS_WAY) {
            all.pop_front();
        }
        all.push_back((Instant::now(), execution));
    }

    /// Whether it was cancelled recently.
    pub(crate) fn has(&self, execution: &ExecutionKey) -> bool {
        self.lock().iter().any(|(at, key)| key == execution && at.elapsed() <= ON_ITS_WAY)
    }
}

#[cfg(test)]
mod tests {
    use model::ExecutionId;

    use super::*;

    #[test]
    fn an_order_that_overtakes_what_it_is_about_is_remembered() {
        let key = || ExecutionKey { group: "g".parse().unwrap(), id: ExecutionId::generate() };
        let (cancelled, one) = (Cancelled::default(), key());
        cancelled.note(one.clone());
        assert!(cancelled.has(&one) && !cancelled.has(&key()));
    }
}
