//! The unfinished executions and the durations of similar ones, from the stream of executions.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use bus::{BusError, Stored};
use index::actions::Backlog;
use model::{
    AcceptedHead, ExecutionEvent, ExecutionHead, ExecutionKey, Millis, Needs, Pool, PoolName, Requirements,
    Sequence,
};
use policy::actions::{History, preferred_pool};

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
    /// The pools that are scaled.
    pools: Vec<Pool>,
    history: History,
    upto: Sequence,
}

struct Unfinished {
    sequence: Sequence,
    requirements: Requirements,
    needs: Needs,
    /// The scaled pool that gets more executors because of it; `None` if none of them can run it.
    home: Option<PoolName>,
    since: Millis,
    expected: Option<Duration>,
}

impl LogState for Executions {
    const WHAT: &str = "executions";

    fn apply(&mut self, stored: &Stored) -> Result<bool, BusError> {
        let head: ExecutionHead = stored.read()?;
        let AcceptedHead { id, group, requirements, needs, accepted_at_ms, keys, .. } = head.execution;
        let (sequence, key) = (stored.sequence, ExecutionKey { group, id });
        if self.unfinished.get(&key).is_some_and(|known| known.sequence >= sequence) {
            return Ok(false);
        }
        let home = self.home(&requirements, &needs);
        let flow = home.as_ref().map(|home| self.flows.entry(home.clone()).or_default());
        match head.event {
            ExecutionEvent::Finished => {
                self.unfinished.remove(&key);
                if let Some(measured) = head.measured {
                    if let Some(flow) = flow {
                        flow.end(sequence, Duration::from_millis(measured.wall_ms));
                    }
                    if head.exit_code == Some(0) {
                        self.history.learn(&keys, &measured);
                    }
                }
                Ok(false)
            }
            ExecutionEvent::Accepted | ExecutionEvent::Other => {
                if let Some(flow) = flow.filter(|_| head.event == ExecutionEvent::Accepted) {
                    flow.join(sequence);
                }
                let expected = self.history.wall(&keys);
                let since = accepted_at_ms;
                let unfinished = Unfinished { sequence, requirements, needs, home, since, expected };
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
    fn home(&self, requirements: &Requirements, needs: &Needs) -> Option<PoolName> {
        preferred_pool(requirements, needs, &self.pools).map(|pool| pool.name.clone())
    }

    /// Sets the pools that are scaled, with what their executors offer.
    pub(crate) fn set_pools(&mut self, pools: Vec<Pool>) {
        if self.pools == pools {
            return;
        }
        self.pools = pools;
        let mut unfinished = std::mem::take(&mut self.unfinished);
        for it in unfinished.values_mut() {
            it.home = self.home(&it.requirements, &it.needs);
        }
        self.unfinished = unfinished;
    }

    /// Number of executions of the `backlog` of the index for which `pool` gets more executors. The index does not know
    /// what they need; of those with the same requirements, the same part waits as of all that are unfinished.
    pub(crate) fn waiting(&self, pool: &PoolName, backlog: &[Backlog]) -> u64 {
        let of = |backlog: &Backlog| {
            let waiting: u64 = backlog.groups.iter().map(|(_, count)| count).sum();
            let alike = || self.unfinished.values().filter(|it| it.requirements == backlog.requirements);
            let (all, here) = (alike().count(), alike().filter(|it| it.home.as_ref() == Some(pool)).count());
            match all {
                // Their records have not been read yet.
                0 if self.home(&backlog.requirements, &Needs::default()).as_ref() == Some(pool) => waiting,
                0 => 0,
                all => waiting.saturating_mul(here as u64).div_ceil(all as u64),
            }
        };
        backlog.iter().map(of).sum()
    }

    /// The work at `now` in a pool for which `waiting` executions wait and whose executors hold `running`, after a
    /// decision that read up to `counted` and used `service` as the mean service time.
    pub(crate) fn work(
        &mut self,
        pool: &PoolName,
        (waiting, running): (u64, u64),
        counted: Option<Sequence>,
        service: Duration,
        now: Millis,
    ) -> Work {
        let flow = self.flows.entry(pool.clone()).or_default();
        // Without an earlier decision, nothing joined after one.
        flow.forget(counted.unwrap_or(self.upto));
        let service = flow.service(service);
        let of_pool = || self.unfinished.values().filter(|execution| execution.home.as_ref() == Some(pool));
        let all: Duration = of_pool().map(|execution| or_mean(execution.expected, service)).sum();
        let mut since: Vec<Millis> = of_pool().map(|execution| execution.since).collect();
        let queued = match since.len() as u64 {
            // Their records have not been read yet.
            0 => or_mean(None, service).mul_f64(waiting as f64),
            count => share(all, waiting, count),
        };
        // The log does not say which of them run; usually the oldest do.
        let first_waiting = usize::try_from(running).unwrap_or(usize::MAX);
        let oldest =
            (waiting > 0 && first_waiting < since.len()).then(|| *since.select_nth_unstable(first_waiting).1);
        Work {
            waiting,
            held_back: 0,
            running,
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
