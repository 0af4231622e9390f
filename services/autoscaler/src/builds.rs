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
    follow::Read,
    quota::{Held, Limits},
    work::{Work, or_usual, share},
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
    stage: Stage,
    occupancy: Occupancy,
}

#[derive(Debug)]
enum Stage {
    Waits { since: Millis, expected: Option<Duration> },
    Runs { worker: WorkerId },
}

#[derive(Deserialize)]
struct Brief {
    id: BuildId,
    group: Group,
    at_ms: Millis,
    #[serde(default)]
    expected_ms: Option<u64>,
    #[serde(default)]
    occupancy: Occupancy,
    event: Event,
    queue: BriefQueue,
    #[serde(default)]
    invocation: Option<BriefInvocation>,
}

#[derive(Deserialize)]
enum Event {
    #[serde(rename = "BUILD_ENQUEUED")]
    Enqueued,
    #[serde(rename = "INVOCATION_STARTED")]
    Started,
    #[serde(rename = "INVOCATION_FINISHED")]
    Finished,
}

#[derive(Deserialize)]
struct BriefQueue {
    #[serde(default)]
    first_sequence: Option<Sequence>,
    enqueued_at_ms: Millis,
}

#[derive(Deserialize)]
struct BriefInvocation {
    worker: WorkerId,
    started_at_ms: Millis,
}

/// The waiting builds of one group.
#[derive(Debug, Default)]
struct Queue<'a> {
    waiting: u64,
    queued: Duration,
    oldest: Option<Millis>,
    held: Held<'a>,
}

impl Read for Builds {
    const WHAT: &str = "builds";

    fn take(&mut self, stored: &Stored) -> Result<bool, BusError> {
        let brief: Brief = stored.read()?;
        let sequence = stored.sequence;
        let key = BuildKey { group: brief.group, id: brief.id };
        if self.unfinished.get(&key).is_some_and(|known| known.sequence >= sequence) {
            return Ok(false);
        }
        let stage = match (brief.event, brief.invocation) {
            (Event::Enqueued, _) => {
                if brief.queue.first_sequence.is_none() {
                    self.flow.join(sequence);
                }
                let expected = brief.expected_ms.map(Duration::from_millis);
                Some(Stage::Waits { since: brief.queue.enqueued_at_ms, expected })
            }
            (Event::Started, Some(invocation)) => Some(Stage::Runs { worker: invocation.worker }),
            (Event::Finished, Some(invocation)) => {
                self.flow.end(sequence, brief.at_ms.since(invocation.started_at_ms));
                None
            }
            (Event::Started | Event::Finished, None) => None,
        };
        let joined = matches!(stage, Some(Stage::Waits { .. }));
        match stage {
            Some(stage) => {
                self.unfinished.insert(key, Unfinished { sequence, stage, occupancy: brief.occupancy });
            }
            None => drop(self.unfinished.remove(&key)),
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
            match &build.stage {
                Stage::Waits { since, expected } => {
                    queue.waiting += 1;
                    queue.queued += or_usual(*expected, service);
                    queue.oldest = Some(queue.oldest.map_or(*since, |oldest| oldest.min(*since)));
                    queue.held.wants(build.sequence, &build.occupancy);
                }
                Stage::Runs { worker } => {
                    work.running += 1;
                    work.busy.insert(worker.to_string());
                    queue.held.has(&build.occupancy);
                }
            }
        }
        for (group, queue) in queues {
            let could = limits.startable(group, queue.held);
            work.waiting += could;
            work.held_back += queue.waiting - could;
            work.queued += share(queue.queued, could, queue.waiting);
            if let Some(since) = queue.oldest.filter(|_| could > 0) {
                work.oldest_wait = work.oldest_wait.max(now.since(since));
            }
        }
        work
    }
}

#[cfg(test)]
mod tests;
