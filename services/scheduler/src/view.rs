//! What this scheduler knows of executors: how full each is, and which executions it was notified of. These are hints,
//! from heartbeats, requests of executors and messages of other schedulers; the index is authoritative.

use std::{collections::HashMap, time::Duration};

use index::actions::Waiting;
use model::{
    ClaimNotice, ClaimRequest, ClaimedAt, ExecutionKey, ExecutorHeartbeat, ExecutorHome, ExecutorId,
    ExecutorStatus, PoolName, Resources, Sequence,
};
use parking_lot::Mutex;
use policy::actions::{Candidate, Member};
use quick_cache::unsync::Cache;
use tokio::time::Instant;

/// Maximum number of executions whose notified executors are remembered.
const NOTIFIED_MAX: usize = 100_000;
/// Maximum number of executions remembered as claimed.
const CLAIMED_MAX: usize = 10_000;

/// The view of all executors, behind one lock.
#[derive(Debug, Default)]
pub(crate) struct View(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    executors: HashMap<ExecutorId, ExecutorState>,
    notified: Cache<ExecutionKey, Notified>,
    /// Recently claimed executions: a request that only names these needs no read of the index.
    claimed: Cache<ExecutionKey, ()>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            executors: HashMap::new(),
            notified: Cache::new(NOTIFIED_MAX),
            claimed: Cache::new(CLAIMED_MAX),
        }
    }
}

/// The executors that were notified of an execution.
#[derive(Debug)]
struct Notified {
    /// Position of the record that they were notified of.
    sequence: Sequence,
    executors: Vec<ExecutorId>,
    /// Number of executors at the front of `executors` where it is warm.
    warm: usize,
    at: Instant,
}

/// The executors where an execution is warm.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    pub(crate) at: Vec<ExecutorId>,
    /// Whether other executors wait for one of them.
    pub(crate) first: bool,
}

/// How long other executors let those with room go first where an execution is warm: well below
/// [`crate::reserve::CHECK`], when any executor with room is woken.
const FOR_WARM: Duration = Duration::from_millis(15);

#[derive(Debug)]
struct ExecutorState {
    pool: PoolName,
    home: ExecutorHome,
    capacity: Resources,
    free: Resources,
    starts: u32,
    slots: u32,
    /// Reservations that it may hold beyond its running and queued executions.
    queued: u32,
    open: bool,
    until: Instant,
}

impl ExecutorState {
    fn has_room(&self, size: &Resources) -> bool {
        self.open && self.starts > 0 && size.clamped(&self.capacity).fits(&self.free)
    }

    fn load(&self) -> f64 {
        let full = 1.0 - self.free.share_of(&self.capacity);
        full + f64::from(self.queued) / f64::from(self.slots.max(1))
    }
}

impl View {
    /// Records a heartbeat of an executor.
    pub(crate) fn heartbeat(&self, heartbeat: &ExecutorHeartbeat) {
        let mut inner = self.0.lock();
        // Removes executors that died without a message.
        let now = Instant::now();
        inner.executors.retain(|_, state| state.until > now);
        if heartbeat.status == ExecutorStatus::Gone {
            inner.executors.remove(&heartbeat.executor);
            return;
        }
        let mut free = heartbeat.capacity.clone();
        free.take(&heartbeat.held);
        let running = u32::try_from(heartbeat.running.len()).unwrap_or(u32::MAX);
        let slots = u32::from(heartbeat.slots);
        let state = ExecutorState {
            pool: heartbeat.pool.clone(),
            home: heartbeat.home.clone(),
            capacity: heartbeat.capacity.clone(),
            free,
            starts: slots.saturating_sub(running),
            slots,
            queued: heartbeat.queued,
            open: heartbeat.status == ExecutorStatus::Ready,
            until: Instant::now() + Duration::from_millis(heartbeat.ttl_ms),
        };
        inner.executors.insert(heartbeat.executor.clone(), state);
    }

    /// Records how much room an executor has when it asks for work.
    pub(crate) fn note_request(&self, request: &ClaimRequest) {
        self.set_room(&request.executor, &request.free, request.starts.into());
    }

    /// Records how much room an executor has left after an answer, from this scheduler or another. Returns the
    /// executors that were notified here of the claimed executions and may forget them.
    pub(crate) fn note_answer(&self, notice: &ClaimNotice) -> HashMap<ExecutorId, Vec<ExecutionKey>> {
        self.set_room(&notice.executor, &notice.free, notice.starts.into());
        let mut trim: HashMap<ExecutorId, Vec<ExecutionKey>> = HashMap::new();
        let mut inner = self.0.lock();
        for ClaimedAt { execution: key, sequence } in &notice.claimed {
            // The claim arrived late: the execution waits again since, and the executors notified of that must keep it.
            if inner.notified.peek(key).is_some_and(|notified| notified.sequence > *sequence) {
                continue;
            }
            inner.claimed.insert(key.clone(), ());
            for executor in
                inner.notified.remove(key).map(|(_, notified)| notified.executors).unwrap_or_default()
            {
                if executor != notice.executor {
                    trim.entry(executor).or_default().push(key.clone());
                }
            }
        }
        trim
    }

    fn set_room(&self, executor: &ExecutorId, free: &Resources, starts: u32) {
        if let Some(state) = self.0.lock().executors.get_mut(executor) {
            state.free.clone_from(free);
            state.starts = starts;
            state.queued = 0;
        }
    }

    /// Removes a lost executor.
    pub(crate) fn lost(&self, executor: &ExecutorId) {
        self.0.lock().executors.remove(executor);
    }

    /// Records that `executors` were notified of the record of `key` at `sequence`; it is warm at the
    /// first `warm` of them.
    pub(crate) fn note_notified(
        &self,
        key: &ExecutionKey,
        sequence: Sequence,
        executors: Vec<ExecutorId>,
        warm: usize,
    ) {
        let mut inner = self.0.lock();
        for executor in &executors {
            if let Some(state) = inner.executors.get_mut(executor) {
                state.queued = state.queued.saturating_add(1);
            }
        }
        inner.notified.insert(key.clone(), Notified { sequence, executors, warm, at: Instant::now() });
    }

    /// Removes an execution that ended. Returns the executors that were notified of it.
    pub(crate) fn forget_finished(&self, key: &ExecutionKey) -> Vec<ExecutorId> {
        self.0.lock().notified.remove(key).map(|(_, notified)| notified.executors).unwrap_or_default()
    }

    /// The executors where `key`, which needs `size`, is warm, as far as they were notified by this scheduler.
    pub(crate) fn warm(&self, key: &ExecutionKey, size: &Resources) -> Warm {
        let inner = self.0.lock();
        let Some(notified) = inner.notified.peek(key) else { return Warm::default() };
        let at: Vec<ExecutorId> = notified.executors.iter().take(notified.warm).cloned().collect();
        let has_room =
            |executor: &ExecutorId| inner.executors.get(executor).is_some_and(|state| state.has_room(size));
        let first = notified.at.elapsed() < FOR_WARM && at.iter().any(has_room);
        Warm { at, first }
    }

    /// Forgets a claim of an execution that waits again.
    pub(crate) fn waits_again(&self, key: &ExecutionKey) {
        self.0.lock().claimed.remove(key);
    }

    /// Whether all of `keys` were claimed recently.
    pub(crate) fn all_claimed(&self, keys: &[ExecutionKey]) -> bool {
        let inner = self.0.lock();
        keys.iter().all(|key| inner.claimed.peek(key).is_some())
    }

    /// The executors of a pool that can be notified of a waiting execution.
    pub(crate) fn candidates(&self, pool: &PoolName) -> Vec<Candidate> {
        let now = Instant::now();
        let inner = self.0.lock();
        let of_pool = inner.executors.iter().filter(|(_, it)| it.pool == *pool && it.open && it.until > now);
        let candidate = |(executor, state): (&ExecutorId, &ExecutorState)| Candidate {
            executor: executor.clone(),
            home: state.home.clone(),
            capacity: state.capacity.clone(),
            load: state.load(),
        };
        let mut all: Vec<Candidate> = of_pool.map(candidate).collect();
        all.sort_by(|a, b| a.executor.cmp(&b.executor));
        all
    }

    /// All live executors of a pool.
    pub(crate) fn members(&self, pool: &PoolName) -> Vec<Member> {
        let now = Instant::now();
        let inner = self.0.lock();
        let of_pool = inner.executors.iter().filter(|(_, state)| state.pool == *pool && state.until > now);
        let member = |(executor, state): (&ExecutorId, &ExecutorState)| Member {
            executor: executor.clone(),
            capacity: state.capacity.clone(),
        };
        of_pool.map(member).collect()
    }

    /// Resources of the largest known executor of a pool.
    pub(crate) fn capacity(&self, pool: &PoolName) -> Resources {
        let inner = self.0.lock();
        let of_pool = inner.executors.values().filter(|state| state.pool == *pool);
        of_pool.fold(Resources::default(), |most, state| most.max(&state.capacity))
    }

    /// Executors of a pool that have room for one of `waiting`, are large enough for it and have no copy of it, as far
    /// as this scheduler knows.
    pub(crate) fn with_room(&self, pool: &PoolName, waiting: &[&Waiting]) -> Vec<ExecutorId> {
        let inner = self.0.lock();
        let now = Instant::now();
        let can_take = |(id, state): &(&ExecutorId, &ExecutorState)| {
            let suits = |it: &&Waiting| {
                let demand = &it.demand;
                state.has_room(&demand.size)
                    && demand.asked().fits(&state.capacity)
                    && !it.holders.contains(id)
            };
            state.pool == *pool && state.until > now && waiting.iter().any(suits)
        };
        inner.executors.iter().filter(can_take).map(|(id, _)| id.clone()).collect()
    }

    /// The pools that have executors.
    pub(crate) fn pools(&self) -> Vec<PoolName> {
        let inner = self.0.lock();
        let distinct: std::collections::BTreeSet<&PoolName> =
            inner.executors.values().map(|state| &state.pool).collect();
        distinct.into_iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests;
