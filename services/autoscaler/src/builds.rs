//! The waiting and running builds, from the event stream.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use bus::{BusError, Stored};
use model::{BuildId, BuildKey, Group, Millis, Occupancy, Sequence, WorkerId};
use serde::Deserialize;

use crate::{
    flow::Flow,
    follow::LogState,
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
    Waiting { since: Millis, expected: Option<Duration> },
    Running { worker: WorkerId },
}

#[derive(Deserialize)]
struct RecordFields {
    id: BuildId,
    group: Group,
    at_ms: Millis,
    #[serde(default)]
    expected_ms: Option<u64>,
    #[serde(default)]
    occupancy: Occupancy,
    event: EventName,
    queue: QueueFields,
    #[serde(default)]
    invocation: Option<InvocationFields>,
}

#[derive(Deserialize)]
enum EventName {
    #[serde(rename = "BUILD_ENQUEUED")]
    Enqueued,
    #[serde(rename = "INVOCATION_STARTED")]
    Started,
    #[serde(rename = "INVOCATION_FINISHED")]
    Finished,
}

#[derive(Deserialize)]
struct QueueFields {
    #[serde(default)]
    first_sequence: Option<Sequence>,
    enqueued_at_ms: Millis,
}

#[derive(Deserialize)]
struct InvocationFields {
    worker: WorkerId,
    started_at_ms: Millis,
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
        let fields: RecordFields = stored.read()?;
        let sequence = stored.sequence;
        let key = BuildKey { group: fields.group, id: fields.id };
        if self.unfinished.get(&key).is_some_and(|known| known.sequence >= sequence) {
            return Ok(false);
        }
        let state = match (fields.event, fields.invocation) {
            (EventName::Enqueued, _) => {
                if fields.queue.first_sequence.is_none() {
                    self.flow.join(sequence);
                }
                let expected = fields.expected_ms.map(Duration::from_millis);
                Some(BuildState::Waiting { since: fields.queue.enqueued_at_ms, expected })
            }
            (EventName::Started, Some(invocation)) => Some(BuildState::Running { worker: invocation.worker }),
            (EventName::Finished, Some(invocation)) => {
                self.flow.end(sequence, fields.at_ms.since(invocation.started_at_ms));
                None
            }
            (EventName::Started | EventName::Finished, None) => None,
        };
        let joined = matches!(state, Some(BuildState::Waiting { .. }));
        match state {
            Some(state) => {
                self.unfinished.insert(key, Unfinished { sequence, state, occupancy: fields.occupancy });
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
        self.flow.forget(counted.unwrap_or(self.upto));
        let service = self.flow.service(service);
        let upto = self.upto.max(counted.unwrap_or_default());
        let mut work = Work { arrived: self.flow.joined(), service, upto, ..Work::default() };
        let mut queues: BTreeMap<&Group, Queue<'_>> = BTreeMap::new();
        for (key, build) in &self.unfinished {
            let queue = queues.entry(&key.group).or_default();
            match &build.state {
                BuildState::Waiting { since, expected } => {
                    queue.waiting += 1;
                    queue.queued += or_mean(*expected, service);
                    queue.oldest = Some(queue.oldest.map_or(*since, |oldest| oldest.min(*since)));
                    queue.builds.add_waiting(build.sequence, &build.occupancy);
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
