//! Asks the schedulers for work whenever there is room: one request at a time, for all free room.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bus::NoAnswer;
use model::{ClaimReply, ClaimRequest};
use policy::Random;
use service::{ServiceError, Step, crash_point, send_heartbeat};
use telemetry::metrics::{Counter, Label, count};
use tracing::{debug, warn};

use crate::{control, hand_over, held_actions::WorkRequest, run, sensor_readings, shared::Shared};

/// Maximum number of reservations named in a request.
const NAMED_MAX: usize = 16;
/// Mean delay before an unanswered request is repeated, and the maximum of that mean after repeated failures.
const RETRY: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Asks for work until the session ends. A request is sent after the start, a reservation, free room, a reconnect, an
/// announcement of schedulers, or an unanswered request. Otherwise nothing is sent.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let mut reconnects = shared.context.bus.reconnects();
    let mut random = Random::new(shared.context.bus.now().0 ^ u64::from(std::process::id()));
    let mut unanswered = 0;
    loop {
        let later = shared.queue.lock().next_due();
        let retry = (unanswered > 0).then(|| pause(unanswered, &mut random));
        tokio::select! {
            () = shared.actions.free_room.notified() => {}
            () = reconnects.next() => {}
            // The times are computed even if there is none; the conditions then disable the waits.
            () = tokio::time::sleep(retry.unwrap_or_default()), if retry.is_some() => {}
            () = tokio::time::sleep_until(later.unwrap_or_else(Instant::now).into()), if later.is_some() => {}
            // A delayed reservation arrived, perhaps due sooner than the known ones.
            () = shared.later.notified() => continue,
        }
        shared.queue.lock().update_due(Instant::now());
        // Claim all available work at once.
        loop {
            let asked = tokio::select! {
                asked = ask(&shared) => asked,
                // The answer was lost with the connection.
                () = reconnects.next() => continue,
            };
            match asked {
                Asked::Again => {}
                Asked::Enough => {
                    unanswered = 0;
                    break;
                }
                Asked::Unanswered => {
                    unanswered = (unanswered + 1).min(16);
                    break;
                }
            }
        }
    }
}

/// A random delay of 0.5 to 1.5 times a mean that doubles with each unanswered request.
fn pause(unanswered: u32, random: &mut Random) -> Duration {
    let mean = (RETRY * 2_u32.saturating_pow(unanswered - 1)).min(RETRY_MAX);
    mean.mul_f64(0.5 + random.unit())
}

/// The result of a request for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// There may be more work to claim.
    Again,
    /// There is no room, or no work for it.
    Enough,
    /// No scheduler sent a valid answer.
    Unanswered,
}

async fn ask(shared: &Arc<Shared>) -> Asked {
    sensor_readings::read(shared);
    let Some(work_request) = shared.actions.work_request() else { return Asked::Enough };
    let question = question(shared, work_request);
    match shared.context.bus.answer_to(&(), &question, Some(ClaimRequest::PATIENCE)).await {
        Ok(reply) => receive(shared, reply).await,
        Err(error @ NoAnswer::Unreadable { .. }) => {
            warn!(error = telemetry::error_chain(&error), "cannot read the answer to a request for work");
            Asked::Unanswered
        }
        Err(error @ (NoAnswer::NoListener { .. } | NoAnswer::TooLarge { .. } | NoAnswer::Unknown { .. })) => {
            unanswered(shared, &error).await;
            Asked::Unanswered
        }
    }
}

fn question(shared: &Shared, work_request: WorkRequest) -> ClaimRequest {
    ClaimRequest {
        executor: shared.id.clone(),
        pool: shared.pool.name.clone(),
        capacity: shared.pool.capacity.clone(),
        free: work_request.free.resources,
        starts: work_request.free.starts,
        ahead: work_request.ahead,
        idle: work_request.idle,
        reserved: shared.queue.lock().first(NAMED_MAX, Instant::now()),
    }
}

/// Sends a heartbeat after a lost answer, so that the schedulers see which claimed actions did not arrive.
async fn unanswered(shared: &Shared, error: &NoAnswer) {
    count(Counter::ActionClaims, &[(Label::Verdict, "unanswered")], 1);
    debug!(error = telemetry::error_chain(error), "no scheduler answered; retrying");
    if !matches!(error, NoAnswer::NoListener { .. }) {
        send_heartbeat(shared).await;
    }
}

async fn receive(shared: &Arc<Shared>, reply: ClaimReply) -> Asked {
    if !reply.claimed.is_empty() {
        crash_point(Step::ActionClaimAnswered);
    }
    let granted = reply.claimed.len();
    {
        let mut queue = shared.queue.lock();
        let claimed = reply.claimed.iter().map(|claimed| claimed.record.execution.key());
        for key in claimed.chain(reply.trim) {
            queue.trim(&key);
        }
    }
    let mut refused = Vec::new();
    let over: Vec<_> = reply
        .claimed
        .iter()
        .map(|claimed| claimed.record.execution.key())
        .filter(|key| shared.cancelled.has(key))
        .collect();
    for claimed in reply.claimed {
        let accepted = shared.actions.accept(claimed, |claimed, handle| run::fetch(shared, claimed, handle));
        refused.extend(accepted.err().map(|claimed| claimed.record.execution.key()));
    }
    if granted > 0 {
        crash_point(Step::ActionTaken);
    }
    for work in shared.actions.start() {
        run::begin(shared, work);
    }
    for key in over {
        tokio::spawn(control::cancel(shared.clone(), key));
    }
    hand_over::give_back(shared, refused, Vec::new()).await;
    let verdict = if granted > 0 { "granted" } else { "empty" };
    count(Counter::ActionClaims, &[(Label::Verdict, verdict)], 1);
    // Waiting actions that were not granted do not fit, unless there were too many for one answer.
    if granted > 0 && reply.waiting > 0 { Asked::Again } else { Asked::Enough }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_without_an_answer_are_asked_again_ever_later() {
        let mut random = Random::new(7);
        for unanswered in 1..=16 {
            let mean = Duration::from_millis(50 * 2_u64.pow(unanswered - 1)).min(RETRY_MAX);
            for _ in 0..100 {
                let pause = pause(unanswered, &mut random);
                assert!(pause >= mean / 2 && pause <= mean * 3 / 2, "{unanswered}: {pause:?}");
            }
        }
        let pauses: std::collections::BTreeSet<_> = (0..10).map(|_| pause(3, &mut random)).collect();
        assert!(pauses.len() > 5);
    }
}
