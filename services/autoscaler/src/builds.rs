//! The waiting and running builds, from the event stream.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use bus::{BusError, Stored};
use model::{BuildKey, Group, LifecycleEvent, Millis, Occupancy, Priority, RecordHead, Sequence, WorkerId};

use crate::{
    flow::Flow,
    log_state::LogState,
    quota::{GroupBuilds, Limits},
    work::{Work, or_mean, share},
};

/// All unfinished builds, and the flow of builds.
#[derive(Debug, Default)]
pub(crate) struct Builds {
    unfinished: HashMap<BuildKey, Unfinished>,
    flow: Flow,
    upto: Sequence,
}

#[derive(Debug)]
struct Unfinished {
    sequence: Sequence,
    state: BuildState,
    occupancy: Occupancy,
}

#[derive(Debug)]
enum BuildState {
    Waiting { priority: Priority, since: Millis, expected: Option<Duration> },
    Running { worker: WorkerId },
}

/// The waiting builds of one group.
#[derive(Debug, Default)]
struct Queue<'a> {
    waiting: u64,
    queued: Duration,
    oldest: Option<Millis>,
    builds: GroupBuilds<'a>,
}

impl LogState for Builds {
    const WHAT: &str = "builds";

    fn apply(&mut self, stored: &Stored) -> Result<bool, BusError> {
        let head: RecordHead = stored.read()?;
        let sequence = stored.sequence;
        let key = BuildKey { group: head.group, id: head.id };
        if self.unfinished.get(&key).is_some_and(|known| known.sequence >= sequence) {
            return Ok(false);
        }
        let state = match (head.event, head.invocation) {
            (LifecycleEvent::Enqueued, _) => {
                if head.queue.first_sequence.is_none() {
                    self.flow.join(sequence);
                }
                let expected = head.expected_ms.map(Duration::from_millis);
                let (priority, since) = (head.priority, head.queue.enqueued_at_ms);
                Some(BuildState::Waiting { priority, since, expected })
            }
            (LifecycleEvent::Started, Some(invocation)) => {
                Some(BuildState::Running { worker: invocation.worker })
            }
            (LifecycleEvent::Finished, Some(invocation)) => {
                self.flow.end(sequence, head.at_ms.since(invocation.started_at_ms));
                None
            }
            (LifecycleEvent::Started | LifecycleEvent::Finished, None) => None,
        };
        let joined = matches!(state, Some(BuildState::Waiting { .. }));
        match state {
            Some(state) => {
                self.unfinished.insert(key, Unfinished { sequence, state, occupancy: head.occupancy });
            }
            None => {
                self.unfinished.remove(&key);
            }
        }
        Ok(joined)
    }

    fn read_up_to(&mut self, upto: Sequence) {
        self.upto = upto;
    }
}

impl Builds {
    /// The work at `now`, after a decision that read up to `counted` and used `service` as the mean service time.
    pub(crate) fn work(
        &mut self,
        counted: Option<Sequence>,
        service: Duration,
        limits: Limits<'_>,
        now: Millis,
    ) -> Work {
        // Without an earlier decision, nothing joined after one.
        self.flow.forget(counted.unwrap_or(self.upto));
        let service = self.flow.service(service);
        let upto = self.upto.max(counted.unwrap_or_default());
        let mut work = Work { arrived: self.flow.joined(), service, upto, ..Work::default() };
        let mut queues: BTreeMap<&Group, Queue<'_>> = BTreeMap::new();
        for (key, build) in &self.unfinished {
            let queue = queues.entry(&key.group).or_default();
            match &build.state {
                BuildState::Waiting { priority, since, expected } => {
                    queue.waiting += 1;
                    queue.queued += or_mean(*expected, service);
                    queue.oldest = Some(queue.oldest.map_or(*since, |oldest| oldest.min(*since)));
                    queue.builds.add_waiting(*priority, build.sequence, &build.occupancy);
                }
                BuildState::Running { worker } => {
                    work.running += 1;
                    work.busy.insert(worker.to_string());
                    queue.builds.add_running(&build.occupancy);
                }
            }
        }
        for (group, queue) in queues {
            let startable = limits.startable(group, queue.builds);
            work.waiting += startable;
            work.held_back += queue.waiting - startable;
            work.queued += share(queue.queued, startable, queue.waiting);
            if let Some(since) = queue.oldest.filter(|_| startable > 0) {
                work.oldest_wait = work.oldest_wait.max(now.since(since));
            }
        }
        work
    }
}

#[cfg(test)]
mod tests;
