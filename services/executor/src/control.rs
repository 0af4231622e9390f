//! Orders to this executor.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bus::{Encoding, Subject, decode};
use futures::StreamExt as _;
use model::{ExecutionKey, ExecutorControl};
use service::ServiceError;
use tracing::{debug, info, warn};

use crate::{Shared, hand_over, heartbeat};

/// Takes orders until the session ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let subject = Subject::ExecutorControl(shared.id.clone()).to_string();
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        ServiceError::failed("subscribing to orders", error)
    };
    let subscribed = shared.context.bus.client().subscribe(subject).await;
    let mut orders = subscribed.map_err(|error| failed(Box::new(error)))?;
    while let Some(message) = orders.next().await {
        match decode::<ExecutorControl>(Encoding::Json, &message.payload) {
            Ok(ExecutorControl::Cancel { execution }) => {
                tokio::spawn(cancel(shared.clone(), execution));
            }
            Ok(ExecutorControl::Drain) => {
                info!("draining: nothing new is taken");
                shared.hands.set_draining(true);
                shared.changed.notify_one();
                // Who hears of what is given back must not give it to us again.
                heartbeat::send(&shared).await;
                hand_over::all(&shared).await;
            }
            Ok(ExecutorControl::Resume) => {
                info!("taking actions again");
                shared.hands.set_draining(false);
                shared.changed.notify_one();
            }
            Err(error) => warn!(error = telemetry::error_chain(&error), "an order cannot be read"),
        }
    }
    Err(failed("the subscription ended".into()))
}

/// Kills an action at once: nobody wants its result, so it is not asked to end by itself first.
pub(crate) async fn cancel(shared: Arc<Shared>, execution: ExecutionKey) {
    if !shared.hands.has(&execution) {
        // It may be on its way here.
        shared.cancelled.note(execution);
        return;
    }
    // The word of the store, not the order's, says that it is over.
    match shared.context.bus.latest_execution(&execution).await {
        Ok(Some((_, record))) if record.outcome().is_none() => {
            debug!(%execution, "an order to kill an action that is still wanted is ignored");
        }
        Ok(_) => shared.hands.stop(&execution),
        Err(error) => debug!(%execution, %error, "whether the action is over is not known yet"),
    }
}

/// What was ordered to be killed and was not in hand: an order may overtake what it is about. Of the last moments only.
#[derive(Debug, Default)]
pub(crate) struct Cancelled(Mutex<VecDeque<(Instant, ExecutionKey)>>);

/// Nothing is on its way here for longer.
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

    /// Whether an order for it came in the last moments.
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
