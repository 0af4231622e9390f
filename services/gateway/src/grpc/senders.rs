//! Builds of this farm that send actions, from Bazel or as a job. Each may use its own quota group whatever its
//! instance name allows, because that was decided when the build was submitted. For the same reason its actions have
//! the priority of its record, which no header can change.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bus::{Bus, BusError};
use model::{BuildKey, BuildRecord, Group, Priority, SendingBuild, State};
use parking_lot::Mutex;

/// How long a run is assumed to continue after a check.
const VALID_FOR: Duration = Duration::from_secs(5);
/// How long a sender that was not a running build is not checked again.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);
const ENTRIES_MAX: usize = 4096;

/// Cache of builds that are known to run. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Senders {
    bus: Bus,
    cached: Arc<Mutex<HashMap<String, CachedSender>>>,
}

/// A build that ran at the time of a check.
#[derive(Debug, Clone, Copy)]
struct CachedSender {
    /// `None` if it was not a running build of the group.
    priority: Option<Priority>,
    checked_at: Instant,
}

impl Senders {
    pub(crate) fn new(bus: Bus) -> Self {
        Self { bus, cached: Arc::default() }
    }

    /// The priority of `sender` if it is a running build of `group`, on the same worker and in the same attempt.
    pub(crate) async fn priority_of(
        &self,
        group: &Group,
        sender: &SendingBuild,
    ) -> Result<Option<Priority>, BusError> {
        let name = format!("{group} {sender}");
        if let Some(known) = self.cached(&name) {
            return Ok(known.priority);
        }
        let key = BuildKey { group: group.clone(), id: sender.id };
        let record = self.bus.records().latest(&key).await?.map(|(_, record)| record);
        let runs = |record: &BuildRecord| {
            let here = record.invocation().is_some_and(|run| run.worker == sender.worker);
            record.state() == State::InProgress && record.attempt == sender.attempt && here
        };
        let priority = record.filter(runs).map(|record| record.build.priority);
        self.cache(name, priority);
        Ok(priority)
    }

    fn cached(&self, name: &str) -> Option<CachedSender> {
        self.cached.lock().get(name).copied().filter(|sender| sender.is_valid())
    }

    fn cache(&self, name: String, priority: Option<Priority>) {
        let mut cached = self.cached.lock();
        if cached.len() >= ENTRIES_MAX {
            cached.retain(|_, sender| sender.is_valid());
        }
        if cached.len() < ENTRIES_MAX {
            cached.insert(name, CachedSender { priority, checked_at: Instant::now() });
        }
    }
}

impl CachedSender {
    fn is_valid(self) -> bool {
        self.checked_at.elapsed() < if self.priority.is_some() { VALID_FOR } else { UNKNOWN_FOR }
    }
}
