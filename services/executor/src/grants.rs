//! Receives the executions that schedulers grant to this executor.

use std::sync::{Arc, atomic::Ordering};

use model::{ExecutionKey, Grants};
use service::{ServiceError, Step, Subscription, crash_point, send_heartbeat};
use telemetry::metrics::{Counter, Label, count};
use tracing::info;

use crate::{control, hand_over, held_actions::Answers, image, run, sensor_readings, shared::Shared};

/// Subscribes before the schedulers can know of this executor.
pub(crate) async fn subscribe(shared: &Shared) -> Result<Subscription<Grants>, ServiceError> {
    Subscription::<Grants>::new(&shared.context.bus, &shared.id).await
}

/// Accepts grants until the session ends.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    mut messages: Subscription<Grants>,
) -> Result<(), ServiceError> {
    loop {
        let grants = messages.next().await?.content;
        receive(&shared, grants).await;
    }
}

/// Sends a heartbeat soon, which confirms the actions that are held then. One heartbeat confirms all
/// that are accepted in the meantime.
fn confirm_later(shared: &Arc<Shared>) {
    if shared.confirming.swap(true, Ordering::Relaxed) {
        return;
    }
    let shared = shared.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Grants::CONFIRMED_AFTER).await;
        shared.confirming.store(false, Ordering::Relaxed);
        if shared.actions.holds_any() {
            shared.actions.announce.notify_one();
        }
    });
}

async fn receive(shared: &Arc<Shared>, grants: Grants) {
    let number = grants.number;
    if grants.claimed.is_empty() {
        // A scheduler does not know the room, and this executor may have missed grants.
        shared.actions.note_granted(number);
        send_heartbeat(&**shared).await;
        return;
    }
    crash_point(Step::ActionGrantReceived);
    let over: Vec<ExecutionKey> = grants
        .claimed
        .iter()
        .map(|claimed| claimed.record.execution.key())
        .filter(|key| shared.cancelled.has(key))
        .collect();
    let granted = grants.claimed.len() as u64;
    let fetch = |claimed: &_, handle: &_| run::fetch(shared, claimed, handle);
    let images = |claimed: &_| image::needed(shared, claimed);
    let Answers { fetching, mut refused } = shared.actions.accept_all(number, grants.claimed, images, fetch);
    count(Counter::ActionClaims, &[(Label::Verdict, "granted")], granted - refused.len() as u64);
    crash_point(Step::ActionTaken);
    for (execution, handle) in fetching {
        run::fetch_images(shared, execution, handle);
    }
    confirm_later(shared);
    // The sensors of an idle executor were last read some time ago.
    sensor_readings::read(shared);
    if shared.actions.is_shut() {
        refused.extend(shared.actions.remove_all_waiting());
    } else {
        for work in shared.actions.start() {
            run::begin(shared, work);
        }
    }
    for key in over {
        tokio::spawn(control::cancel(shared.clone(), key));
    }
    if !refused.is_empty() {
        info!(count = refused.len(), "returning granted actions: this executor accepts none now");
        count(Counter::ActionClaims, &[(Label::Verdict, "returned")], refused.len() as u64);
        // The heartbeat goes first, so that schedulers do not grant them to this executor again.
        send_heartbeat(&**shared).await;
        hand_over::give_back(shared, refused).await;
    }
}
