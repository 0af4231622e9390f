//! Builds of this farm that send actions, from Bazel or as a job. Each may use its own quota group whatever its
//! instance name allows, because that was decided when the build was submitted.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bus::{Bus, BusError};
use model::{BuildKey, Group, SendingBuild, State};
use parking_lot::Mutex;

/// How long a run is assumed to continue after a check.
const VALID_FOR: Duration = Duration::from_secs(5);
const ENTRIES_MAX: usize = 4096;

/// Cache of builds that are known to run. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Senders {
    bus: Bus,
    cached: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Senders {
    pub(crate) fn new(bus: Bus) -> Self {
        Self { bus, cached: Arc::default() }
    }

    /// Whether `sender` is a running build of `group`, on the same worker and in the same attempt.
    pub(crate) async fn runs(&self, group: &Group, sender: &SendingBuild) -> Result<bool, BusError> {
        let name = format!("{group} {sender}");
        if self.is_cached(&name) {
            return Ok(true);
        }
        let key = BuildKey { group: group.clone(), id: sender.id };
        let Some((_, record)) = self.bus.records().latest(&key).await? else { return Ok(false) };
        let here = record.invocation().is_some_and(|run| run.worker == sender.worker);
        let runs = record.state() == State::InProgress && record.attempt == sender.attempt && here;
        if runs {
            self.cache(name);
        }
        Ok(runs)
    }

    fn is_cached(&self, name: &str) -> bool {
        let cached = self.cached.lock();
        cached.get(name).is_some_and(|at| at.elapsed() < VALID_FOR)
    }

    fn cache(&self, name: String) {
        let mut cached = self.cached.lock();
        if cached.len() >= ENTRIES_MAX {
            cached.retain(|_, at| at.elapsed() < VALID_FOR);
        }
        if cached.len() < ENTRIES_MAX {
            cached.insert(name, Instant::now());
        }
    }
}
