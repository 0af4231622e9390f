//! Published requests that nats-server mistakes for repeats of another group's request.
//!
//! The server has one list of message ids for the whole stream, which covers at least the last 100 ms. If a bare id is
//! published to two groups within that time, the server stores one message and acknowledges the other without storing
//! it. A plain subscriber receives both. Each enqueuer therefore subscribes, and enqueues both builds itself when it
//! sees such a pair: the one that the stream has as well is recognised as the same build.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use bus::{Published, PublishedRequests, RequestId};
use invariant::impossible;
use model::BuildId;
use service::{Context, ServiceError};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use crate::{enqueue::Intake, requests};

/// Well above the time for which nats-server remembers an id: its list is cleaned by a timer.
const WINDOW: Duration = Duration::from_secs(1);
/// Maximum total size of remembered requests in bytes; the oldest are dropped first.
const BYTES_MAX: usize = 32 << 20;
/// Maximum number of pairs handled at once.
const PAIRS_MAX: usize = 256;
const TRIES: u32 = 100;
const RETRY: Duration = Duration::from_millis(200);

/// Watches for such pairs until the service stops.
pub(crate) async fn watch(
    context: Context,
    mut requests: PublishedRequests,
    intake: Intake,
) -> Result<(), ServiceError> {
    let mut recent = Recent::default();
    let mut tasks = JoinSet::new();
    loop {
        let message = tokio::select! {
            biased;
            () = context.stop.cancelled() => break,
            Some(_) = tasks.join_next() => continue,
            Some(message) = requests.next(), if tasks.len() < PAIRS_MAX => message,
        };
        for message in recent.pair(message, Instant::now()) {
            let (context, intake) = (context.clone(), intake.clone());
            tasks.spawn(async move { queue(&context, &intake, &message).await });
        }
    }
    tasks.shutdown().await;
    Ok(())
}

async fn queue(context: &Context, intake: &Intake, message: &Published) {
    debug!(subject = message.subject(), "the same id was published to two groups at the same time");
    for _ in 0..TRIES {
        // What the job lacks now may appear later, so only the last attempt rejects it.
        match requests::process(context, intake, message, 1).await {
            Ok(_) => return,
            Err(error) => {
                warn!(
                    subject = message.subject(),
                    error = telemetry::error_chain(&error),
                    "enqueue failed, retrying"
                );
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// The bare ids that were published within [`WINDOW`].
#[derive(Default)]
struct Recent {
    first: HashMap<BuildId, Published>,
    order: VecDeque<(Instant, BuildId)>,
    bytes: usize,
}

impl Recent {
    /// The messages of which one may not be stored: this one and the previous one with the same bare id, if they
    /// are of two groups.
    fn pair(&mut self, message: Published, now: Instant) -> Vec<Published> {
        self.forget(now);
        let Some(Ok(RequestId::Bare(id))) = message.message_id().map(str::parse) else {
            return Vec::new();
        };
        match self.first.get(&id) {
            Some(first) if group(first) != group(&message) => vec![first.clone(), message],
            Some(_) => Vec::new(),
            None => {
                self.bytes += message.payload().len();
                self.order.push_back((now, id));
                self.first.insert(id, message);
                Vec::new()
            }
        }
    }

    fn forget(&mut self, now: Instant) {
        while let Some((at, id)) = self.order.front() {
            if now.duration_since(*at) < WINDOW && self.bytes < BYTES_MAX {
                return;
            }
            match self.first.remove(id) {
                Some(message) => self.bytes -= message.payload().len(),
                None => impossible!("id {id} is in the order of ids and has no message"),
            }
            self.order.pop_front();
        }
    }
}

fn group(message: &Published) -> Option<&str> {
    message.subject().rsplit('.').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(group: &str, id: &str, bytes: usize) -> Published {
        let subject = format!("forebay.build.request.{group}.batch");
        Published::new(&subject, &[("Nats-Msg-Id", id)], vec![0; bytes].into())
    }

    fn subjects(pair: &[Published]) -> Vec<&str> {
        pair.iter().filter_map(group).collect()
    }

    #[test]
    fn a_bare_id_in_two_groups_is_a_pair() {
        let mut recent = Recent::default();
        let (id, now) = (BuildId::generate().to_string(), Instant::now());
        assert!(recent.pair(message("a", &id, 1), now).is_empty());
        assert!(recent.pair(message("a", &id, 1), now).is_empty());
        assert_eq!(subjects(&recent.pair(message("b", &id, 1), now)), ["a", "b"]);
        assert_eq!(subjects(&recent.pair(message("c", &id, 1), now)), ["a", "c"]);
        assert!(recent.pair(message("b", &format!("b/{id}"), 1), now).is_empty());
        assert!(recent.pair(message("d", &id, 1), now + WINDOW).is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        for _ in 0..200 {
            let id = BuildId::generate().to_string();
            assert!(recent.pair(message("a", &id, 1 << 20), now).is_empty());
        }
        assert!(recent.bytes <= BYTES_MAX + (1 << 20) && recent.first.len() == recent.order.len());
        recent.forget(now + WINDOW);
        assert!(recent.bytes == 0 && recent.first.is_empty());
    }
}
