//! How long the queues of groups are and how much groups send, so that one that is full takes no more builds.
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
use policy::{Full, LogGrowth, QueueLength};
use settings::EnqueuerSettings;
use tokio::sync::Notify;
use tracing::debug;

/// Time between two measurements of a queue that is more than half full.
const EVERY: Duration = Duration::from_millis(200);
/// The same of another one to which builds are added: less than [`QueueLength`] considers too old.
const SELDOM: Duration = Duration::from_secs(3);
/// Number of records of a build that contain its request: when it is accepted, starts and ends.
const RECORDS: usize = 3;
/// Maximum number of groups that are remembered.
const GROUPS_MAX: usize = 10_000;

/// The queues that an enqueuer adds to. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Queues(Arc<Inner>);

struct Inner {
    bus: Bus,
    most: u64,
    by_group: BTreeMap<Group, u64>,
    mib_per_hour: u64,
    known: Mutex<HashMap<Group, Known>>,
    /// Tells the measuring task that there is something to measure.
    wanted: Notify,
}

#[derive(Default)]
struct Known {
    length: QueueLength,
    growth: LogGrowth,
    /// Whether it is to be measured because a build arrived.
    is_wanted: bool,
    measured_at: Millis,
}

/// A group has too many builds, or too large ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueueFull {
    #[error(
        "{} builds of group {group} wait, and its queue may have {} (setting queue_builds_max): try again in {} s",
        full.waiting,
        full.most,
        full.retry_seconds
    )]
    Builds { group: Group, full: Full },
    #[error(
        "records of builds of group {group} took more than {mib_per_hour} MiB within an hour (setting queue_mib_per_hour): try again in {retry_seconds} s"
    )]
    Bytes { group: Group, mib_per_hour: u64, retry_seconds: u64 },
}

impl QueueFull {
    /// Seconds after which there may be room.
    pub(crate) fn retry_seconds(&self) -> u64 {
        match self {
            Self::Builds { full, .. } => full.retry_seconds,
            Self::Bytes { retry_seconds, .. } => *retry_seconds,
        }
    }
}

impl Queues {
    pub(crate) fn new(bus: Bus, settings: &EnqueuerSettings) -> Self {
        let (most, by_group) = (settings.queue_builds_max, settings.queue_builds_max_by_group.clone());
        let mib_per_hour = settings.queue_mib_per_hour;
        Self(Arc::new(Inner {
            bus,
            most,
            by_group,
            mib_per_hour,
            known: Mutex::default(),
            wanted: Notify::new(),
        }))
    }

    fn most(&self, group: &Group) -> u64 {
        self.0.by_group.get(group).copied().unwrap_or(self.0.most)
    }

    /// Whether the queue of a group takes another build.
    pub(crate) fn check(&self, group: &Group, priority: Priority) -> Result<(), QueueFull> {
        let most = self.most(group);
        let mut known = self.0.known.lock();
        let (now, known) = (self.0.bus.now(), known.entry(group.clone()).or_default());
        let mib_per_hour = self.0.mib_per_hour;
        if let Err(retry_seconds) = known.growth.check(mib_per_hour, priority, now) {
            return Err(QueueFull::Bytes { group: group.clone(), mib_per_hour, retry_seconds });
        }
        if most > 0 && now.since(known.measured_at) >= SELDOM && !known.is_wanted {
            known.is_wanted = true;
            self.0.wanted.notify_one();
        }
        let full = known.length.check(most, priority, now);
        full.map_err(|full| QueueFull::Builds { group: group.clone(), full })
    }

    /// Counts a build of so many bytes that was added to the queue of its group.
    pub(crate) fn add(&self, group: &Group, bytes: usize) {
        let most = self.most(group);
        let mut known = self.0.known.lock();
        let Some(known) = known.get_mut(group) else { return };
        known.growth.add(self.0.mib_per_hour, bytes * RECORDS, self.0.bus.now());
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
            let now = self.0.bus.now();
            all.retain(|group, known| {
                let is_new = known.growth.is_new(self.0.mib_per_hour, now);
                !is_new || known.is_wanted || known.length.is_filling(self.most(group))
            });
        }
        let wanted = all.iter_mut().filter_map(|(group, known)| {
            let is_wanted = std::mem::take(&mut known.is_wanted) || known.length.is_filling(self.most(group));
            is_wanted.then(|| (group.clone(), known.length.added()))
        });
        wanted.collect()
    }
}
