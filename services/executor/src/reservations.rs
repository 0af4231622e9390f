//! Receives reservations of waiting executions from the schedulers. The executor registers by subscribing; the
//! subscription ends while the congestion window is closed.

use std::{sync::Arc, time::Instant};

use model::Reservations;
use service::{ServiceError, Step, Subscription, crash_point};
use telemetry::metrics::{Gauge, set};

use crate::shared::Shared;

/// Subscribes before the schedulers can know of this executor.
pub(crate) async fn subscribe(shared: &Shared) -> Result<Subscription<Reservations>, ServiceError> {
    Subscription::<Reservations>::new(&shared.context.bus, &shared.id).await
}

/// Puts reservations in the queue until the session ends.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    mut messages: Subscription<Reservations>,
) -> Result<(), ServiceError> {
    let closed = |_| ServiceError::failed("receiving reservations", "the admission state is closed");
    let mut open = shared.admission.open();
    loop {
        tokio::select! {
            message = messages.next() => {
                receive(&shared, message?.content);
                continue;
            }
            shut = open.wait_for(|open| !open) => drop(shut.map_err(closed)?),
        }
        drop(messages);
        shared.actions.announce.notify_one();
        drop(open.wait_for(|open| *open).await.map_err(closed)?);
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
