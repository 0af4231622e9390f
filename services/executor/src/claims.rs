//! Asking the schedulers for work, whenever there is room for it: one question at a time, with all room in it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::{
    Request,
    client::{RequestError, RequestErrorKind},
};
use bus::{Encoding, Subject, decode, encode};
use model::{ClaimReply, ClaimRequest};
use policy::Random;
use service::{ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tracing::{debug, warn};

use crate::{Shared, admission, control, hand_over, hands::Wish, heartbeat, run};

/// Reservations named in a question at most.
const NAMED_MAX: usize = 16;
/// How long after a question without an answer the next is asked, on the average; and at most, when that goes on.
const RETRY: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Asks for work until the session ends. What makes it ask: its start, a reservation, room, the connection's return, an
/// announcement of schedulers, a question without an answer. Nothing else: while nothing of that happens, nothing is sent.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let mut reconnects = shared.context.bus.reconnects();
    let mut random = Random::new(shared.context.bus.now().0 ^ u64::from(std::process::id()));
    let mut unanswered = 0;
    loop {
        let later = shared.queue().next_ripe();
        let retry = (unanswered > 0).then(|| pause(unanswered, &mut random));
        tokio::select! {
            () = shared.hands.room.notified() => {}
            () = reconnects.next() => {}
            () = tokio::time::sleep(retry.unwrap_or_default()), if retry.is_some() => {}
            () = tokio::time::sleep_until(later.unwrap_or_else(Instant::now).into()), if later.is_some() => {}
            // A reservation for later came: perhaps for sooner than those that are known.
            () = shared.later.notified() => continue,
        }
        shared.queue().ripen(Instant::now());
        // Whatever more there is for us is taken at once.
        loop {
            let asked = tokio::select! {
                asked = ask(&shared) => asked,
                // The answer is lost with the connection.
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

/// Between half and one and a half of twice as long each time.
fn pause(unanswered: u32, random: &mut Random) -> Duration {
    let mean = (RETRY * 2_u32.saturating_pow(unanswered - 1)).min(RETRY_MAX);
    mean.mul_f64(0.5 + random.unit())
}

/// What came of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// There may be more where that came from.
    Again,
    /// There is no room, or nothing for it.
    Enough,
    /// Nobody answered.
    Unanswered,
}

async fn ask(shared: &Arc<Shared>) -> Asked {
    admission::look(shared);
    let Some(wish) = shared.hands.wish() else { return Asked::Enough };
    let payload = encode(Encoding::Json, &question(shared, wish));
    let request = Request::new().payload(payload).timeout(Some(ClaimRequest::PATIENCE));
    let answer = shared.context.bus.client().send_request(Subject::ExecutorClaim.to_string(), request).await;
    match answer {
        Ok(message) => match decode::<ClaimReply>(Encoding::Json, &message.payload) {
            Ok(reply) => receive(shared, reply).await,
            Err(error) => {
                warn!(
                    error = telemetry::error_chain(&error),
                    "the answer to a request for work cannot be read"
                );
                Asked::Unanswered
            }
        },
        Err(error) => {
            unanswered(shared, &error).await;
            Asked::Unanswered
        }
    }
}

fn question(shared: &Shared, wish: Wish) -> ClaimRequest {
    ClaimRequest {
        executor: shared.id.clone(),
        pool: shared.pool.name.clone(),
        capacity: shared.pool.capacity.clone(),
        free: wish.free.resources,
        starts: wish.free.starts,
        ahead: wish.ahead,
        idle: wish.idle,
        reserved: shared.queue().first(NAMED_MAX, Instant::now()),
    }
}

/// What was claimed for us in vain is known by our heartbeat, which does not name it.
async fn unanswered(shared: &Shared, error: &RequestError) {
    count(Counter::ActionClaims, &[(Label::Verdict, "unanswered")], 1);
    debug!(%error, "no scheduler answers; it is asked again");
    if error.kind() != RequestErrorKind::NoResponders {
        heartbeat::send(shared).await;
    }
}

async fn receive(shared: &Arc<Shared>, reply: ClaimReply) -> Asked {
    if !reply.claimed.is_empty() {
        crash_point(Step::ActionClaimAnswered);
    }
    let granted = reply.claimed.len();
    {
        let mut queue = shared.queue();
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
        let taken = shared.hands.take(claimed, |claimed, hand| run::fetch(shared, claimed, hand));
        refused.extend(taken.err().map(|claimed| claimed.record.execution.key()));
    }
    if granted > 0 {
        crash_point(Step::ActionTaken);
    }
    for work in shared.hands.start() {
        run::begin(shared, work);
    }
    for key in over {
        tokio::spawn(control::cancel(shared.clone(), key));
    }
    hand_over::give_back(shared, refused, Vec::new()).await;
    let verdict = if granted > 0 { "granted" } else { "empty" };
    count(Counter::ActionClaims, &[(Label::Verdict, verdict)], 1);
    // What waits and was not granted does not fit, unless there was too much for one answer.
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
