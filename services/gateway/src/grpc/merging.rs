//! Identical concurrent requests share one execution. The requests for one action at this gateway pass its door one
//! at a time; the index knows the executions of the other gateways.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use index::actions::{Actions, Joined, MergeKey};
use model::{Execution, ExecutionKey};
use telemetry::metrics::{Counter, count};
use tokio::time::Instant;
use tracing::debug;

/// Time limit for an answer of Redis; after it the action is executed unmerged.
const PATIENCE: Duration = Duration::from_millis(250);
/// Pause after an unanswered request to Redis, so that not every action waits for the time limit.
const REST: Duration = Duration::from_secs(1);
/// Time for the projection of the log to include a new execution.
const UNTIL_PROJECTED: Duration = Duration::from_secs(5);

/// The executions that other requests may join. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Merging(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    enabled: bool,
    /// Set once Redis has answered.
    index: Arc<OnceLock<Actions>>,
    rests_until: Mutex<Option<Instant>>,
    doors: Mutex<HashMap<MergeKey, Room>>,
}

/// The execution that the last request to pass the door found or started.
type Inside = Arc<tokio::sync::Mutex<Option<ExecutionKey>>>;

#[derive(Debug)]
struct Room {
    inside: Inside,
    /// Number of holders; the entry is removed with the last one.
    holders: usize,
}

/// Per-action lock at this gateway. A request that starts or joins an execution holds the door while it waits, so
/// that later requests find the execution without a query.
#[derive(Debug)]
pub(crate) struct Door {
    what: MergeKey,
    inside: Inside,
    merging: Merging,
}

impl Merging {
    pub(crate) fn new(enabled: bool, index: Arc<OnceLock<Actions>>) -> Self {
        Self(Arc::new(Inner { enabled, index, rests_until: Mutex::default(), doors: Mutex::default() }))
    }

    /// The door for `execution`; `None` if it may not be shared.
    pub(crate) fn door(&self, execution: &Execution) -> Option<Door> {
        let what = MergeKey::of(execution).filter(|_| self.0.enabled)?;
        let mut doors = self.doors();
        let room =
            doors.entry(what.clone()).or_insert_with(|| Room { inside: Inside::default(), holders: 0 });
        room.holders += 1;
        let inside = Arc::clone(&room.inside);
        Some(Door { what, inside, merging: self.clone() })
    }

    /// Whether executions are shared at all.
    pub(crate) fn is_enabled(&self) -> bool {
        self.0.enabled
    }

    fn doors(&self) -> MutexGuard<'_, HashMap<MergeKey, Room>> {
        self.0.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when the index is not queried.
    fn rests(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.rests_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Door {
    /// Waits for the caller's turn. One request at a time is inside.
    pub(crate) async fn enter(&self) -> tokio::sync::MutexGuard<'_, Option<ExecutionKey>> {
        self.inside.lock().await
    }

    /// Asks the index which execution to join; those in `over` have ended. If the index does not answer, the
    /// candidate counts as the first: an unmerged execution only costs time.
    pub(crate) async fn ask(&self, candidate: &ExecutionKey, over: &[ExecutionKey]) -> Joined {
        let index = self.merging.0.index.get();
        let Some(index) = index.filter(|_| self.merging.rests().is_none_or(|until| until <= Instant::now()))
        else {
            count(Counter::MergingSkipped, &[], 1);
            return Joined::First;
        };
        let asked = index.join(&self.what, candidate, over, UNTIL_PROJECTED);
        let failed = match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok(joined)) => return joined,
            Ok(Err(error)) => telemetry::error_chain(&error),
            Err(_) => "timed out".to_owned(),
        };
        debug!(error = failed, "the index is unavailable; the action is executed unmerged");
        *self.merging.rests() = Some(Instant::now() + REST);
        count(Counter::MergingSkipped, &[], 1);
        Joined::First
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let mut doors = self.merging.doors();
        if let Some(room) = doors.get_mut(&self.what) {
            room.holders -= 1;
            if room.holders == 0 {
                doors.remove(&self.what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{ActionKeys, Attempt, ClientTool, DigestFunction, Execution, ExecutionId, Millis, Needs};

    use super::*;

    fn execution(group: &str, instance: &str, content: &[u8], do_not_cache: bool) -> Execution {
        Execution {
            id: ExecutionId::generate(),
            group: group.parse().unwrap(),
            instance: instance.into(),
            action: DigestFunction::Sha256.digest(content),
            priority: 0,
            pool: "default".parse().unwrap(),
            timeout_ms: 1,
            do_not_cache,
            accepted_at_ms: Millis(0),
            expires_at_ms: Millis(0),
            max_attempts: Attempt(1),
            traceparent: None,
            client: ClientTool::default(),
            build: None,
            needs: Needs::default(),
            keys: ActionKeys::default(),
        }
    }

    #[tokio::test]
    async fn one_door_for_each_action_as_long_as_somebody_holds_it() {
        let merging = Merging::new(true, Arc::default());
        let first = merging.door(&execution("g", "main", b"a", false)).unwrap();
        *first.enter().await = Some(execution("g", "main", b"a", false).key());
        let second = merging.door(&execution("g", "main", b"a", false)).unwrap();
        assert!(second.enter().await.is_some());
        let others = [("h", "main", b"a"), ("g", "other", b"a"), ("g", "main", b"b")];
        for (group, instance, content) in others {
            let other = merging.door(&execution(group, instance, content, false)).unwrap();
            assert_eq!(*other.enter().await, None, "{group} {instance}");
        }
        drop(first);
        assert_eq!(merging.doors().len(), 1);
        drop(second);
        assert!(merging.doors().is_empty());
        let again = merging.door(&execution("g", "main", b"a", false)).unwrap();
        assert_eq!(*again.enter().await, None);
    }

    #[test]
    fn what_may_not_be_shared_has_no_door() {
        let merging = Merging::new(true, Arc::default());
        assert!(merging.door(&execution("g", "main", b"a", true)).is_none());
        let off = Merging::new(false, Arc::default());
        assert!(off.door(&execution("g", "main", b"a", false)).is_none());
    }
}
