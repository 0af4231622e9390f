//! What this scheduler knows of executors: how full each is, and what it told them of. Hints, from heartbeats, from what
//! executors ask, and from what other schedulers tell; what is true is decided by the index.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use index::actions::Waiting;
use model::{
    ClaimNotice, ClaimRequest, ClaimedAt, ExecutionKey, ExecutorHeartbeat, ExecutorHome, ExecutorId,
    ExecutorStatus, PoolName, Resources, Sequence,
};
use policy::actions::{Candidate, Member};
use tokio::time::Instant;

/// Executions of which it is remembered who was told.
const TOLD_MAX: usize = 100_000;

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct View(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    executors: HashMap<ExecutorId, Seen>,
    told: HashMap<ExecutionKey, Told>,
    /// In the order in which they were told of.
    order: VecDeque<ExecutionKey>,
    /// Lately claimed: whoever asks for one of them needs no look into the index.
    claimed: VecDeque<ExecutionKey>,
    claimed_set: std::collections::HashSet<ExecutionKey>,
}

/// Who was told of an execution.
#[derive(Debug)]
struct Told {
    /// Of which record.
    sequence: Sequence,
    executors: Vec<ExecutorId>,
    /// It is warm at so many of them, the first.
    warm: usize,
    at: Instant,
}

/// Where an execution is warm.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    pub(crate) at: Vec<ExecutorId>,
    /// Whether others wait for one of them.
    pub(crate) first: bool,
}

/// How long others let those go first where an execution is warm, if they have room: well below [`crate::reserve::CHECK`],
/// when whoever has room is woken.
const FOR_WARM: Duration = Duration::from_millis(15);

#[derive(Debug)]
struct Seen {
    pool: PoolName,
    home: ExecutorHome,
    capacity: Resources,
    free: Resources,
    starts: u32,
    slots: u32,
    /// Reservations that it may have, beyond what it has in hand.
    queued: u32,
    open: bool,
    until: Instant,
}

impl Seen {
    fn has_room(&self, size: &Resources) -> bool {
        self.open && self.starts > 0 && size.clamped(&self.capacity).fits(&self.free)
    }

    fn load(&self) -> f64 {
        let full = 1.0 - self.free.share_of(&self.capacity);
        full + f64::from(self.queued) / f64::from(self.slots.max(1))
    }
}

impl View {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An executor says how it is.
    pub(crate) fn heartbeat(&self, heartbeat: &ExecutorHeartbeat) {
        let mut inner = self.lock();
        // Those that died unheard.
        let now = Instant::now();
        inner.executors.retain(|_, seen| seen.until > now);
        if heartbeat.status == ExecutorStatus::Gone {
            inner.executors.remove(&heartbeat.executor);
            return;
        }
        let mut free = heartbeat.capacity.clone();
        free.take(&heartbeat.held);
        let in_hand = u32::try_from(heartbeat.running.len()).unwrap_or(u32::MAX);
        let slots = u32::from(heartbeat.slots);
        let seen = Seen {
            pool: heartbeat.pool.clone(),
            home: heartbeat.home.clone(),
            capacity: heartbeat.capacity.clone(),
            free,
            starts: slots.saturating_sub(in_hand),
            slots,
            queued: heartbeat.queued,
            open: heartbeat.status == ExecutorStatus::Ready,
            until: Instant::now() + Duration::from_millis(heartbeat.ttl_ms),
        };
        inner.executors.insert(heartbeat.executor.clone(), seen);
    }

    /// An executor says how much room it has.
    pub(crate) fn asks(&self, ask: &ClaimRequest) {
        self.room(&ask.executor, &ask.free, ask.starts.into());
    }

    /// An executor was answered, here or elsewhere: it has so much room left. Returns those who were told here of what it
    /// claimed, and may forget it.
    pub(crate) fn answered(&self, notice: &ClaimNotice) -> HashMap<ExecutorId, Vec<ExecutionKey>> {
        self.room(&notice.executor, &notice.free, notice.starts.into());
        let mut trim: HashMap<ExecutorId, Vec<ExecutionKey>> = HashMap::new();
        let mut inner = self.lock();
        for ClaimedAt { execution: key, sequence } in &notice.claimed {
            // Heard late: since then it waits again, and whoever was told of that must not forget it.
            if inner.told.get(key).is_some_and(|told| told.sequence > *sequence) {
                continue;
            }
            inner.note_claimed(key);
            for executor in inner.told.remove(key).map(|told| told.executors).unwrap_or_default() {
                if executor != notice.executor {
                    trim.entry(executor).or_default().push(key.clone());
                }
            }
        }
        trim
    }

    fn room(&self, executor: &ExecutorId, free: &Resources, starts: u32) {
        if let Some(seen) = self.lock().executors.get_mut(executor) {
            seen.free.clone_from(free);
            seen.starts = starts;
            seen.queued = 0;
        }
    }

    /// An executor is lost.
    pub(crate) fn lost(&self, executor: &ExecutorId) {
        self.lock().executors.remove(executor);
    }

    /// These were told of the record of `key` at `sequence`, which is warm at so many of them, the first.
    pub(crate) fn told(
        &self,
        key: &ExecutionKey,
        sequence: Sequence,
        executors: Vec<ExecutorId>,
        warm: usize,
    ) {
        let mut inner = self.lock();
        for executor in &executors {
            if let Some(seen) = inner.executors.get_mut(executor) {
                seen.queued = seen.queued.saturating_add(1);
            }
        }
        inner.told.insert(key.clone(), Told { sequence, executors, warm, at: Instant::now() });
        inner.order.push_back(key.clone());
        while inner.order.len() > TOLD_MAX {
            if let Some(oldest) = inner.order.pop_front() {
                inner.told.remove(&oldest);
            }
        }
    }

    /// It ended: nobody needs to be told of it any more. Returns those who were.
    pub(crate) fn ended(&self, key: &ExecutionKey) -> Vec<ExecutorId> {
        self.lock().told.remove(key).map(|told| told.executors).unwrap_or_default()
    }

    /// Where `key`, which wants `size`, is warm, as far as it was told of here.
    pub(crate) fn warm(&self, key: &ExecutionKey, size: &Resources) -> Warm {
        let inner = self.lock();
        let Some(told) = inner.told.get(key) else { return Warm::default() };
        let at: Vec<ExecutorId> = told.executors.iter().take(told.warm).cloned().collect();
        let has_room =
            |executor: &ExecutorId| inner.executors.get(executor).is_some_and(|seen| seen.has_room(size));
        let first = told.at.elapsed() < FOR_WARM && at.iter().any(has_room);
        Warm { at, first }
    }

    /// It waits again: a claim of it that is remembered is void.
    pub(crate) fn waits_again(&self, key: &ExecutionKey) {
        self.lock().claimed_set.remove(key);
    }

    /// Whether all of `keys` were claimed lately.
    pub(crate) fn all_claimed(&self, keys: &[ExecutionKey]) -> bool {
        let inner = self.lock();
        keys.iter().all(|key| inner.claimed_set.contains(key))
    }

    /// Who of a pool can be told of a waiting execution.
    pub(crate) fn candidates(&self, pool: &PoolName) -> Vec<Candidate> {
        let now = Instant::now();
        let inner = self.lock();
        let of_pool = inner.executors.iter().filter(|(_, it)| it.pool == *pool && it.open && it.until > now);
        let one = |(executor, seen): (&ExecutorId, &Seen)| Candidate {
            executor: executor.clone(),
            home: seen.home.clone(),
            capacity: seen.capacity.clone(),
            load: seen.load(),
        };
        let mut all: Vec<Candidate> = of_pool.map(one).collect();
        all.sort_by(|a, b| a.executor.cmp(&b.executor));
        all
    }

    /// The executors of a pool.
    pub(crate) fn members(&self, pool: &PoolName) -> Vec<Member> {
        let now = Instant::now();
        let inner = self.lock();
        let of_pool = inner.executors.iter().filter(|(_, seen)| seen.pool == *pool && seen.until > now);
        let one = |(executor, seen): (&ExecutorId, &Seen)| Member {
            executor: executor.clone(),
            capacity: seen.capacity.clone(),
        };
        of_pool.map(one).collect()
    }

    /// What the largest executor of a pool has, as far as any is known.
    pub(crate) fn capacity(&self, pool: &PoolName) -> Resources {
        let inner = self.lock();
        let of_pool = inner.executors.values().filter(|seen| seen.pool == *pool);
        of_pool.fold(Resources::default(), |most, seen| most.max(&seen.capacity))
    }

    /// Executors of a pool that have room for one of `waiting`, are large enough for it and have no copy of it, as far as is
    /// known.
    pub(crate) fn with_room(&self, pool: &PoolName, waiting: &[&Waiting]) -> Vec<ExecutorId> {
        let inner = self.lock();
        let now = Instant::now();
        let can_take = |(id, seen): &(&ExecutorId, &Seen)| {
            let one = |it: &&Waiting| {
                let demand = &it.demand;
                seen.has_room(&demand.size) && demand.asked().fits(&seen.capacity) && !it.holders.contains(id)
            };
            seen.pool == *pool && seen.until > now && waiting.iter().any(one)
        };
        inner.executors.iter().filter(can_take).map(|(id, _)| id.clone()).collect()
    }

    /// The pools that have executors.
    pub(crate) fn pools(&self) -> Vec<PoolName> {
        let inner = self.lock();
        let distinct: std::collections::BTreeSet<&PoolName> =
            inner.executors.values().map(|seen| &seen.pool).collect();
        distinct.into_iter().cloned().collect()
    }
}

/// Executions of which it is remembered that they were claimed.
const CLAIMED_MAX: usize = 10_000;

impl Inner {
    fn note_claimed(&mut self, key: &ExecutionKey) {
        if self.claimed_set.insert(key.clone()) {
            self.claimed.push_back(key.clone());
        }
        while self.claimed.len() > CLAIMED_MAX {
            if let Some(oldest) = self.claimed.pop_front() {
                self.claimed_set.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests;
