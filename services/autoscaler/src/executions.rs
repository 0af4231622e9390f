//! The unfinished executions and the durations of similar ones, from the stream of executions.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use bus::{BusError, Stored};
use index::actions::Queue;
use model::{AcceptedHead, ExecutionEvent, ExecutionHead, ExecutionKey, Millis, PoolName, Sequence};
use policy::actions::History;

use crate::{
    flow::Flow,
    log_state::LogState,
    work::{Work, or_mean, share},
};

/// All unfinished executions, and the flow of executions. The stream does not contain their executors: the index does.
#[derive(Default)]
pub(crate) struct Executions {
    unfinished: HashMap<ExecutionKey, Unfinished>,
    flows: BTreeMap<PoolName, Flow>,
    history: History,
    upto: Sequence,
}

struct Unfinished {
    sequence: Sequence,
    pool: PoolName,
    since: Millis,
    expected: Option<Duration>,
}

impl LogState for Executions {
    const WHAT: &str = "executions";

    fn apply(&mut self, stored: &Stored) -> Result<bool, BusError> {
        let head: ExecutionHead = stored.read()?;
        let AcceptedHead { id, group, pool, accepted_at_ms, keys, .. } = head.execution;
        let (sequence, key) = (stored.sequence, ExecutionKey { group, id });
        if self.unfinished.get(&key).is_some_and(|known| known.sequence >= sequence) {
            return Ok(false);
        }
        let flow = self.flows.entry(pool.clone()).or_default();
        match head.event {
            ExecutionEvent::Finished => {
                self.unfinished.remove(&key);
                if let Some(measured) = head.measured {
                    flow.end(sequence, Duration::from_millis(measured.wall_ms));
                    if head.exit_code == Some(0) {
                        self.history.learn(&keys, &measured);
                    }
                }
                Ok(false)
            }
            ExecutionEvent::Accepted | ExecutionEvent::Other => {
                if head.event == ExecutionEvent::Accepted {
                    flow.join(sequence);
                }
                let expected = self.history.wall(&keys);
                let unfinished = Unfinished { sequence, pool, since: accepted_at_ms, expected };
                self.unfinished.insert(key, unfinished);
                Ok(true)
            }
        }
    }

    fn read_up_to(&mut self, upto: Sequence) {
        self.upto = upto;
    }
}

impl Executions {
    /// The work at `now` in a pool whose `queue` is given by the index, after a decision that read up to `counted` and
    /// used `service` as the mean service time.
    pub(crate) fn work(
        &mut self,
        pool: &PoolName,
        queue: &Queue,
        counted: Option<Sequence>,
        service: Duration,
        now: Millis,
    ) -> Work {
        let flow = self.flows.entry(pool.clone()).or_default();
        // Without an earlier decision, nothing joined after one.
        flow.forget(counted.unwrap_or(self.upto));
        let service = flow.service(service);
        let of_pool = || self.unfinished.values().filter(|execution| execution.pool == *pool);
        let all: Duration = of_pool().map(|execution| or_mean(execution.expected, service)).sum();
        let mut since: Vec<Millis> = of_pool().map(|execution| execution.since).collect();
        let queued = match since.len() as u64 {
            // Their records have not been read yet.
            0 => or_mean(None, service).mul_f64(queue.waiting as f64),
            count => share(all, queue.waiting, count),
        };
        // The log does not say which of them run; usually the oldest do.
        let first_waiting = usize::try_from(queue.running).unwrap_or(usize::MAX);
        let oldest = (queue.waiting > 0 && first_waiting < since.len())
            .then(|| *since.select_nth_unstable(first_waiting).1);
        Work {
            waiting: queue.waiting,
            held_back: 0,
            running: queue.running,
            queued,
            oldest_wait: oldest.map_or(Duration::ZERO, |at| now.since(at)),
            arrived: flow.joined(),
            service,
            busy: BTreeSet::new(),
            upto: self.upto.max(counted.unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests;
