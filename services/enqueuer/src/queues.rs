//! How long the queues of groups are, so that one that is full takes no more builds.
//!
//! Lengths come from the index, which is asked in the background: no build waits for an answer. So a queue may become somewhat
//! longer than its limit, by what arrives between two answers.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use bus::Bus;
use index::Index;
use model::{Group, Millis, Priority};
use parking_lot::Mutex;
use policy::{Full, QueueLength};
use tokio::sync::Notify;
use tracing::debug;

/// Time between two measurements of a queue that is more than half full.
const EVERY: Duration = Duration::from_millis(200);
/// The same of another one to which builds are added: less than [`QueueLength`] considers too old.
const SELDOM: Duration = Duration::from_secs(3);
/// Maximum number of groups that are remembered.
const GROUPS_MAX: usize = 10_000;

/// The queues that an enqueuer adds to. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Queues(Arc<Inner>);

struct Inner {
    bus: Bus,
    most: u64,
    by_group: BTreeMap<Group, u64>,
    known: Mutex<HashMap<Group, Known>>,
    /// Tells the measuring task that there is something to measure.
    wanted: Notify,
}

#[derive(Default)]
struct Known {
    length: QueueLength,
    /// Whether it is to be measured because a build arrived.
    is_wanted: bool,
    measured_at: Millis,
}

/// The queue of a group is full.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{waiting} builds of group {group} wait, and its queue may have {most} (setting queue_builds_max): try again in {retry_seconds} s"
)]
pub(crate) struct QueueFull {
    group: Group,
    waiting: u64,
    most: u64,
    pub(crate) retry_seconds: u64,
}

impl Queues {
    pub(crate) fn new(bus: Bus, most: u64, by_group: BTreeMap<Group, u64>) -> Self {
        Self(Arc::new(Inner { bus, most, by_group, known: Mutex::default(), wanted: Notify::new() }))
    }

    fn most(&self, group: &Group) -> u64 {
        self.0.by_group.get(group).copied().unwrap_or(self.0.most)
    }

    /// Whether the queue of a group takes another build.
    pub(crate) fn check(&self, group: &Group, priority: Priority) -> Result<(), QueueFull> {
        let most = self.most(group);
        if most == 0 {
            return Ok(());
        }
        let full = {
            let mut known = self.0.known.lock();
            let (now, known) = (self.0.bus.now(), known.entry(group.clone()).or_default());
            if now.since(known.measured_at) >= SELDOM && !known.is_wanted {
                known.is_wanted = true;
                self.0.wanted.notify_one();
            }
            known.length.check(most, priority, now)
        };
        full.map_err(|Full { waiting, most, retry_seconds }| QueueFull {
            group: group.clone(),
            waiting,
            most,
            retry_seconds,
        })
    }

    /// Counts a build that was added to the queue of its group.
    pub(crate) fn add(&self, group: &Group) {
        let most = self.most(group);
        let mut known = self.0.known.lock();
        let Some(known) = known.get_mut(group) else { return };
        let was_filling = known.length.is_filling(most);
        known.length.add();
        if !was_filling && known.length.is_filling(most) {
            self.0.wanted.notify_one();
        }
    }

    /// Measures queues to which builds are added, now and then, and often those that are more than half full.
    pub(crate) async fn measure(self, index: Index) {
        loop {
            let groups = self.to_measure();
            if groups.is_empty() {
                self.0.wanted.notified().await;
                continue;
            }
            match index.waiting_counts(&groups.keys().cloned().collect::<Vec<_>>()).await {
                Ok(counts) => {
                    let waiting = |group: &Group| {
                        counts.iter().filter(|it| it.group == *group).map(|it| it.count).sum::<u64>()
                    };
                    let now = self.0.bus.now();
                    let mut known = self.0.known.lock();
                    for (group, added) in &groups {
                        if let Some(known) = known.get_mut(group) {
                            known.length.measure(waiting(group), *added, now);
                            known.measured_at = now;
                        }
                    }
                }
                Err(error) => {
                    debug!(error = telemetry::error_chain(&error), "cannot measure the queues of groups");
                }
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// The groups to measure now, with what was added to each since its last measurement.
    fn to_measure(&self) -> BTreeMap<Group, u64> {
        let mut all = self.0.known.lock();
        if all.len() > GROUPS_MAX {
            all.retain(|group, known| known.is_wanted || known.length.is_filling(self.most(group)));
        }
        let wanted = all.iter_mut().filter_map(|(group, known)| {
            let is_wanted = std::mem::take(&mut known.is_wanted) || known.length.is_filling(self.most(group));
            is_wanted.then(|| (group.clone(), known.length.added()))
        });
        wanted.collect()
    }
}
