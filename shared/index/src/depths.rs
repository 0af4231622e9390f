//! Depths of all queues together.

use std::collections::BTreeMap;

use model::{BuildId, Group, Priority, Sequence};

use crate::{Index, IndexError, script::META};

/// The waiting builds of all groups, by priority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Depths {
    /// Number of running builds.
    pub running: u64,
    /// One for every priority.
    pub queues: BTreeMap<Priority, QueueDepth>,
}

/// The waiting builds of one priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueDepth {
    /// Number of these builds.
    pub waiting: u64,
    /// Position of the BUILD_ENQUEUED that waits longest, among the first builds of each queue.
    pub oldest: Option<Sequence>,
}

/// The waiting builds of a group that have one priority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingCount {
    pub group: Group,
    pub priority: Priority,
    /// Number of these builds.
    pub count: u64,
    /// The build that is the first of them in the queue.
    pub first: BuildId,
}

impl Index {
    /// Counts what waits in `groups`, by priority; priorities without waiting builds are left out.
    pub async fn waiting_counts(&self, groups: &[Group]) -> Result<Vec<WaitingCount>, IndexError> {
        let what = "waiting_counts";
        let mut invocation = self.scripts.waiting_counts.prepare_invoke();
        invocation.key(META).arg(Priority::ALL.len());
        for group in groups {
            invocation.arg(group.as_str());
        }
        let raw: Vec<String> = self.invoke(what, &invocation).await?;
        let places = groups.iter().flat_map(|group| Priority::ALL.map(|priority| (group, priority)));
        let counts = places.zip(raw.chunks(2)).filter_map(|((group, priority), pair)| {
            let [count, first] = pair else { return None };
            let first = first.parse().ok()?;
            Some(WaitingCount { group: group.clone(), priority, count: count.parse().ok()?, first })
        });
        Ok(counts.collect())
    }

    /// Counts what waits; `None` if the index is not complete.
    pub async fn depths(&self) -> Result<Option<Depths>, IndexError> {
        let what = "queue_depths";
        let mut invocation = self.scripts.queue_depths.prepare_invoke();
        invocation.key(META).arg(Priority::ALL.len());
        let (ready, running, flat): (u8, u64, Vec<u64>) = self.invoke(what, &invocation).await?;
        if ready != 1 {
            return Ok(None);
        }
        let depth = |priority: Priority| {
            let at = usize::from(priority.rank()) * 2;
            let (waiting, oldest) = (*flat.get(at)?, *flat.get(at + 1)?);
            let oldest = Some(Sequence(oldest)).filter(|position| position.0 > 0);
            Some((priority, QueueDepth { waiting, oldest }))
        };
        let queues = Priority::ALL.into_iter().map(depth).collect::<Option<_>>();
        queues.map(|queues| Some(Depths { running, queues })).ok_or(IndexError::Answer { what })
    }
}
