//! Identical concurrent requests share one execution. The requests for one action at this gateway lock its entry
//! one at a time; the index knows the executions of the other gateways.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use index::actions::{Actions, Joined, MergeKey};
use invariant::impossible;
use model::{Execution, ExecutionKey};
use parking_lot::Mutex;
use telemetry::metrics::{Counter, count};
use tokio::time::Instant;
use tracing::debug;

/// Time limit for an answer of Redis; after it the action is executed unmerged.
const PATIENCE: Duration = Duration::from_millis(250);
/// Pause after an unanswered request to Redis, so that not every action waits for the time limit.
const INDEX_PAUSE: Duration = Duration::from_secs(1);
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
    index_paused_until: Mutex<Option<Instant>>,
    entries: Mutex<HashMap<MergeKey, MergeEntry>>,
}

/// The execution that the last request for an action found or started.
type CurrentExecution = Arc<tokio::sync::Mutex<Option<ExecutionKey>>>;

#[derive(Debug)]
struct MergeEntry {
    current: CurrentExecution,
    /// Number of holders; the entry is removed with the last one.
    holders: usize,
}

/// A request's share of the entry of its action at this gateway. A request that starts or joins an execution holds it
/// while it waits, so that later requests find the execution without a query.
#[derive(Debug)]
pub(crate) struct MergeHandle {
    key: MergeKey,
    current: CurrentExecution,
    merging: Merging,
}

impl Merging {
    pub(crate) fn new(enabled: bool, index: Arc<OnceLock<Actions>>) -> Self {
        Self(Arc::new(Inner {
            enabled,
            index,
            index_paused_until: Mutex::default(),
            entries: Mutex::default(),
        }))
    }

    /// The entry of the action of `execution`; `None` if it may not be shared.
    pub(crate) fn handle(&self, execution: &Execution) -> Option<MergeHandle> {
        let key = MergeKey::of(execution).filter(|_| self.0.enabled)?;
        let mut entries = self.0.entries.lock();
        let entry = entries
            .entry(key.clone())
            .or_insert_with(|| MergeEntry { current: CurrentExecution::default(), holders: 0 });
        entry.holders += 1;
        let current = Arc::clone(&entry.current);
        Some(MergeHandle { key, current, merging: self.clone() })
    }

    /// Whether executions are shared at all.
    pub(crate) fn is_enabled(&self) -> bool {
        self.0.enabled
    }
}

impl MergeHandle {
    /// Locks the entry. One request at a time holds the lock.
    pub(crate) async fn lock(&self) -> tokio::sync::MutexGuard<'_, Option<ExecutionKey>> {
        self.current.lock().await
    }

    /// Asks the index which execution to join; those in `ended` are over. If the index does not answer, the
    /// candidate counts as the first: an unmerged execution only costs time.
    pub(crate) async fn join_in_index(&self, candidate: &ExecutionKey, ended: &[ExecutionKey]) -> Joined {
        let index = self.merging.0.index.get();
        let Some(index) = index
            .filter(|_| self.merging.0.index_paused_until.lock().is_none_or(|until| until <= Instant::now()))
        else {
            count(Counter::MergingSkipped, &[], 1);
            return Joined::First;
        };
        let asked = index.join(&self.key, candidate, ended, UNTIL_PROJECTED);
        let failed = match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok(joined)) => return joined,
            Ok(Err(error)) => telemetry::error_chain(&error),
            Err(_) => "timed out".to_owned(),
        };
        debug!(error = failed, "the index is unavailable; the action is executed unmerged");
        *self.merging.0.index_paused_until.lock() = Some(Instant::now() + INDEX_PAUSE);
        count(Counter::MergingSkipped, &[], 1);
        Joined::First
    }
}

impl Drop for MergeHandle {
    fn drop(&mut self) {
        let mut entries = self.merging.0.entries.lock();
        let Some(entry) = entries.get_mut(&self.key) else {
            impossible!("{:?} has a holder but no entry", self.key);
            return;
        };
        entry.holders -= 1;
        if entry.holders == 0 {
            entries.remove(&self.key);
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
            band: model::Priority::Interactive,
            priority: 0,
            requirements: model::Requirements::default(),
            timeout_ms: 1,
            image: None,
            do_not_cache,
            zone: None,
            caller: String::new(),
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
    async fn one_entry_for_each_action_as_long_as_a_request_holds_it() {
        let merging = Merging::new(true, Arc::default());
        let first = merging.handle(&execution("g", "main", b"a", false)).unwrap();
        *first.lock().await = Some(execution("g", "main", b"a", false).key());
        let second = merging.handle(&execution("g", "main", b"a", false)).unwrap();
        assert!(second.lock().await.is_some());
        let others = [("h", "main", b"a"), ("g", "other", b"a"), ("g", "main", b"b")];
        for (group, instance, content) in others {
            let other = merging.handle(&execution(group, instance, content, false)).unwrap();
            assert_eq!(*other.lock().await, None, "{group} {instance}");
        }
        drop(first);
        assert_eq!(merging.0.entries.lock().len(), 1);
        drop(second);
        assert!(merging.0.entries.lock().is_empty());
        let again = merging.handle(&execution("g", "main", b"a", false)).unwrap();
        assert_eq!(*again.lock().await, None);
    }

    #[test]
    fn what_may_not_be_shared_has_no_entry() {
        let merging = Merging::new(true, Arc::default());
        assert!(merging.handle(&execution("g", "main", b"a", true)).is_none());
        let off = Merging::new(false, Arc::default());
        assert!(off.handle(&execution("g", "main", b"a", false)).is_none());
    }
}
