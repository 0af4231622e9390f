//! Builds of this farm that send actions, by a Bazel or as a job. Each may do so as its own group, whatever an instance name
//! opens to clients: that it may use the group was decided when it was submitted.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bus::{Bus, BusError};
use model::{BuildKey, Group, SendingBuild, State};

/// How long it is believed that a run goes on.
const BELIEVED: Duration = Duration::from_secs(5);
const MOST: usize = 4096;

/// Runs that were seen to go on. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Senders {
    bus: Bus,
    seen: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Senders {
    /// Nothing is seen yet.
    pub(crate) fn new(bus: Bus) -> Self {
        Self { bus, seen: Arc::default() }
    }

    /// Whether `sender` is a build of `group` that runs now, there and for that time.
    pub(crate) async fn runs(&self, group: &Group, sender: &SendingBuild) -> Result<bool, BusError> {
        let name = format!("{group} {sender}");
        if self.is_seen(&name) {
            return Ok(true);
        }
        let key = BuildKey { group: group.clone(), id: sender.id };
        let Some((_, record)) = self.bus.latest(&key).await? else { return Ok(false) };
        let here = record.invocation().is_some_and(|run| run.worker == sender.worker);
        let runs = record.state() == State::InProgress && record.attempt == sender.attempt && here;
        if runs {
            self.see(name);
        }
        Ok(runs)
    }

    fn is_seen(&self, name: &str) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(name).is_some_and(|at| at.elapsed() < BELIEVED)
    }

    fn see(&self, name: String) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= MOST {
            seen.retain(|_, at| at.elapsed() < BELIEVED);
        }
        if seen.len() < MOST {
            seen.insert(name, Instant::now());
        }
    }
}
