//! Receives reservations of waiting executions from the schedulers. The executor registers by subscribing; the
//! subscription ends while the congestion window is closed.

use std::{sync::Arc, time::Instant};

use bus::Listener;
use model::Reservations;
use service::{ServiceError, Step, crash_point};
use telemetry::metrics::{Gauge, set};

use crate::shared::Shared;

/// Subscribes before the schedulers can know of this executor.
pub(crate) async fn subscribe(shared: &Shared) -> Result<Listener<Reservations>, ServiceError> {
    let subscribed = shared.context.bus.listen::<Reservations>(&shared.id).await;
    subscribed.map_err(|error| ServiceError::failed("subscribing to reservations", error))
}

/// Puts reservations in the queue until the session ends.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    mut messages: Listener<Reservations>,
) -> Result<(), ServiceError> {
    let ended = |what: &str| ServiceError::failed("subscribing to reservations", what);
    let mut open = shared.admission.open();
    loop {
        tokio::select! {
            message = messages.next() => {
                receive(&shared, message.ok_or_else(|| ended("the subscription ended"))?.content);
                continue;
            }
            closed = open.wait_for(|open| !open) => drop(closed.map_err(|_| ended("the admission state is closed"))?),
        }
        drop(messages);
        shared.actions.announce.notify_one();
        drop(open.wait_for(|open| *open).await.map_err(|_| ended("the admission state is closed"))?);
        messages = subscribe(&shared).await?;
        shared.actions.announce.notify_one();
        shared.actions.free_room.notify_one();
    }
}

fn receive(shared: &Shared, reservations: Reservations) {
    crash_point(Step::ActionReservationReceived);
    let now = Instant::now();
    // An empty message means that executions wait that are reserved at other executors.
    let mut counts = reservations.reserve.is_empty() && reservations.trim.is_empty();
    let mut counts_later = false;
    let mut queue = shared.queue.lock();
    for key in &reservations.trim {
        queue.trim(key);
    }
    for reservation in reservations.reserve {
        if !shared.actions.has(&reservation.execution) {
            counts |= reservation.after_ms == 0;
            counts_later |= reservation.after_ms > 0;
            queue.insert(reservation, now);
        }
    }
    set(Gauge::ActionReservations, &[], i64::try_from(queue.len()).unwrap_or(i64::MAX));
    drop(queue);
    if counts {
        shared.actions.free_room.notify_one();
    } else if counts_later {
        shared.later.notify_one();
    }
}
