//! What this scheduler knows of executors: how much room each has, and where waiting executions are warm. These are
//! hints, from heartbeats, reports of executors and notices of other schedulers; the index is authoritative.

mod kinds;
mod room;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use invariant::Present as _;
use model::{
    ActionKey, ExecutionKey, ExecutorHeartbeat, ExecutorHome, ExecutorId, ExecutorStatus, GrantNotice,
    PoolName, Requirements, Resources, RoomReport,
};
use parking_lot::Mutex;
use policy::{
    Random,
    actions::{IMAGES_SAID, Member, ProcessingSet, Waiter, credible_room, of_pools},
};
use quick_cache::unsync::Cache;
use tokio::time::Instant;

use self::{kinds::Kinds, room::KnownRoom};
pub(crate) use self::{kinds::KnownKinds, room::OpenExecutor};

/// Maximum number of executions of which the warm places are remembered.
const WARM_MAX: usize = 100_000;

/// Number of executors with an image that are compared because of it.
const IMAGE_HOLDERS: usize = 4;

/// Numbers of live executors by what their heartbeats say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ExecutorCounts {
    pub(crate) ready: u64,
    pub(crate) closed: u64,
    pub(crate) draining: u64,
}

/// The view of all executors, behind one lock.
#[derive(Debug, Default)]
pub(crate) struct View(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    executors: HashMap<ExecutorId, ExecutorState>,
    kinds: Kinds,
    /// The executors that have room, by kind.
    open: BTreeMap<usize, BTreeSet<ExecutorId>>,
    homes: HashMap<ExecutorHome, ExecutorId>,
    /// Where waiting executions are warm.
    warm: Cache<ExecutionKey, Vec<ExecutorHome>>,
    /// The executors that have unpacked an image.
    images: HashMap<ActionKey, BTreeSet<ExecutorId>>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            executors: HashMap::new(),
            kinds: Kinds::default(),
            open: BTreeMap::new(),
            homes: HashMap::new(),
            warm: Cache::new(WARM_MAX),
            images: HashMap::new(),
        }
    }
}

#[derive(Debug)]
struct ExecutorState {
    kind: usize,
    home: ExecutorHome,
    capacity: Resources,
    slots: u16,
    room: KnownRoom,
    images: Arc<BTreeSet<ActionKey>>,
    /// As of its last heartbeat.
    status: ExecutorStatus,
    is_ready: bool,
    until: Instant,
}

impl View {
    /// Records a heartbeat of an executor.
    pub(crate) fn heartbeat(&self, heartbeat: &ExecutorHeartbeat) {
        let mut inner = self.0.lock();
        let executor = &heartbeat.executor;
        if heartbeat.status == ExecutorStatus::Gone {
            inner.remove(executor);
            return;
        }
        let known = inner.executors.get(executor);
        if known.is_some_and(|state| state.room.is_newer(&heartbeat.room)) {
            return;
        }
        let kind = inner.kinds.of(heartbeat);
        inner.leave_kind(executor, kind);
        let known = inner.executors.remove(executor);
        let (mut room, had) = known.map(|state| (state.room, state.images)).unwrap_or_default();
        let images = inner.images_of(executor, had, &heartbeat.images);
        room.report(&credible_room(&heartbeat.room, &heartbeat.capacity, heartbeat.slots));
        let state = ExecutorState {
            kind,
            home: heartbeat.home.clone(),
            capacity: heartbeat.capacity.clone(),
            slots: heartbeat.slots,
            room,
            images,
            status: heartbeat.status,
            // A closed executor reports that it has no room, and soon that it has some again.
            is_ready: matches!(heartbeat.status, ExecutorStatus::Ready | ExecutorStatus::Closed),
            until: Instant::now() + Duration::from_millis(heartbeat.ttl_ms),
        };
        inner.homes.insert(state.home.clone(), executor.clone());
        inner.executors.insert(executor.clone(), state);
        inner.sort(executor);
    }

    /// Records the room that an executor reports. Returns whether it has room.
    pub(crate) fn report(&self, report: &RoomReport) -> bool {
        self.with(&report.executor, |state| {
            state.room.report(&credible_room(&report.room, &state.capacity, state.slots));
        })
    }

    /// Records grants to an executor, of this scheduler or another. Returns whether they are new here.
    pub(crate) fn granted(&self, notice: &GrantNotice) -> bool {
        let mut is_new = false;
        self.with(&notice.executor, |state| is_new = state.room.granted(notice));
        is_new
    }

    /// Records that the room of an executor is not known until it reports room that includes grant `number`.
    pub(crate) fn outdated(&self, executor: &ExecutorId, number: u64) {
        self.with(executor, |state| state.room.outdated(number));
    }

    /// Notes that an executor holds as many executions as it may, and counts as closed for some time. Returns false
    /// if that is known.
    pub(crate) fn refuse(&self, executor: &ExecutorId) -> bool {
        let mut is_new = false;
        self.with(executor, |state| is_new = state.room.refuse());
        is_new
    }

    /// Changes what is known of an executor. Returns whether it has room then.
    fn with(&self, executor: &ExecutorId, change: impl FnOnce(&mut ExecutorState)) -> bool {
        let mut inner = self.0.lock();
        let Some(state) = inner.executors.get_mut(executor) else { return false };
        change(state);
        inner.sort(executor)
    }

    /// Notes that messages may have been lost: grants that the next report of an executor does not include did not arrive.
    pub(crate) fn messages_lost(&self) {
        self.0.lock().executors.values_mut().for_each(|state| state.room.messages_lost());
    }

    /// Removes a lost executor.
    pub(crate) fn lost(&self, executor: &ExecutorId) {
        self.0.lock().remove(executor);
    }

    /// Removes the executors that died without a message.
    pub(crate) fn remove_expired(&self) {
        let now = Instant::now();
        let mut inner = self.0.lock();
        let expired = |(id, state): (&ExecutorId, &ExecutorState)| (state.until <= now).then(|| id.clone());
        let expired: Vec<ExecutorId> = inner.executors.iter().filter_map(expired).collect();
        for executor in &expired {
            inner.remove(executor);
        }
    }

    /// Records the homes where a waiting execution is warm.
    pub(crate) fn note_warm(&self, key: &ExecutionKey, homes: Vec<ExecutorHome>) {
        if !homes.is_empty() {
            self.0.lock().warm.insert(key.clone(), homes);
        }
    }

    /// Forgets where an execution is warm that has ended.
    pub(crate) fn forget_warm(&self, key: &ExecutionKey) {
        self.0.lock().warm.remove(key);
    }

    /// The live executors where a waiting execution is warm.
    pub(crate) fn warm_at(&self, key: &ExecutionKey) -> Vec<ExecutorId> {
        let inner = self.0.lock();
        inner.warm.peek(key).map_or_else(Vec::new, |homes| inner.executors_at(homes))
    }

    /// The executors that are compared in any case: those where an execution is warm, and some that have its image.
    pub(crate) fn wanted<'a>(
        &self,
        waiting: impl Iterator<Item = &'a Waiter> + Clone,
    ) -> BTreeSet<ExecutorId> {
        let image = |waiter: &Waiter| waiter.demand.images.as_ref()?.image;
        let images: BTreeSet<ActionKey> = waiting.clone().filter_map(image).collect();
        let warm = waiting.flat_map(|waiter| waiter.warm_at.iter().cloned());
        warm.chain(self.with_images(&images)).collect()
    }

    /// Some executors with room that have one of these images.
    fn with_images(&self, images: &BTreeSet<ActionKey>) -> Vec<ExecutorId> {
        if images.is_empty() {
            return Vec::new();
        }
        let inner = self.0.lock();
        let is_open = |executor: &&ExecutorId| {
            inner.executors.get(*executor).is_some_and(|state| state.is_ready && state.room.is_open())
        };
        let holders = |image: &ActionKey| {
            let open = inner.images.get(image).into_iter().flatten().filter(is_open);
            open.take(IMAGE_HOLDERS).cloned().collect::<Vec<_>>()
        };
        images.iter().flat_map(holders).collect()
    }

    /// The live executors at these homes.
    pub(crate) fn executors_at(&self, homes: &[ExecutorHome]) -> Vec<ExecutorId> {
        self.0.lock().executors_at(homes)
    }

    /// Whether an executor of one of these kinds has room.
    pub(crate) fn has_room(&self, kinds: &BTreeSet<usize>) -> bool {
        let inner = self.0.lock();
        kinds.iter().any(|kind| inner.open.contains_key(kind))
    }

    /// The kinds of which an executor has room.
    pub(crate) fn open_kinds(&self) -> BTreeSet<usize> {
        self.0.lock().open.keys().copied().collect()
    }

    /// All kinds of executors.
    pub(crate) fn kinds(&self) -> KnownKinds {
        self.0.lock().kinds.known()
    }

    /// At most `max` executors of these kinds that have room, drawn at random, and those of `wanted` that have room
    /// but were not drawn.
    pub(crate) fn open_executors(
        &self,
        kinds: &BTreeSet<usize>,
        max: usize,
        wanted: &BTreeSet<ExecutorId>,
        random: &mut Random,
    ) -> Vec<OpenExecutor> {
        let inner = self.0.lock();
        let mut chosen: Vec<&ExecutorId> =
            kinds.iter().filter_map(|kind| inner.open.get(kind)).flatten().collect();
        // Of equal executors, each is as likely to be the first.
        for at in 0..max.min(chosen.len()) {
            let other = random.below((chosen.len() - at) as u64);
            chosen.swap(at, at + usize::try_from(other).present("an index of a list"));
        }
        if chosen.len() > max {
            let rest: Vec<&ExecutorId> = chosen.split_off(max);
            chosen.extend(rest.into_iter().filter(|executor| wanted.contains(*executor)));
        }
        let now = Instant::now();
        let open = |executor: &ExecutorId| {
            let state = inner.executors.get(executor).filter(|state| state.until > now)?;
            let pool = inner.kinds.get(state.kind)?.name.clone();
            Some(state.room.open(executor, state.kind, pool, (&state.capacity, state.slots), &state.images))
        };
        chosen.into_iter().filter_map(open).collect()
    }

    /// Number of executions that the executors of these kinds take now, counted until it reaches `most`.
    pub(crate) fn room(&self, kinds: &BTreeSet<usize>, most: usize) -> usize {
        let inner = self.0.lock();
        let open = kinds.iter().filter_map(|kind| inner.open.get(kind)).flatten();
        let states = open.filter_map(|executor| inner.executors.get(executor));
        let mut sum = 0_usize;
        for state in states {
            sum = sum.saturating_add(state.room.count());
            if sum >= most {
                return most;
            }
        }
        sum
    }

    /// All live executors of these kinds.
    pub(crate) fn members(&self, kinds: &BTreeSet<usize>) -> Vec<Member> {
        let inner = self.0.lock();
        let of_kinds = inner.executors.iter().filter(|(_, state)| kinds.contains(&state.kind));
        let member = |(executor, state): (&ExecutorId, &ExecutorState)| Member {
            executor: executor.clone(),
            kind: state.kind,
            capacity: state.capacity.clone(),
        };
        of_kinds.map(member).collect()
    }

    /// Resources of the largest live executor that meets `requirements`, wherever shared services run.
    pub(crate) fn capacity(&self, requirements: &Requirements) -> Resources {
        let KnownKinds { offers, .. } = self.kinds();
        let requirements = of_pools(requirements);
        let able = offers.iter().filter(|offer| policy::requirements::satisfies(offer, &requirements));
        able.fold(Resources::default(), |most, offer| most.max(&offer.capacity))
    }

    /// Numbers of live executors.
    pub(crate) fn counts(&self) -> ExecutorCounts {
        let mut counts = ExecutorCounts::default();
        let now = Instant::now();
        for state in self.0.lock().executors.values().filter(|state| state.until > now) {
            match state.status {
                ExecutorStatus::Ready => counts.ready += 1,
                ExecutorStatus::Closed => counts.closed += 1,
                ExecutorStatus::Draining => counts.draining += 1,
                ExecutorStatus::Gone => {}
            }
        }
        counts
    }

    /// Number of executors that meet `requirements`.
    pub(crate) fn count(&self, requirements: &Requirements) -> u32 {
        let inner = self.0.lock();
        let set = ProcessingSet::of(requirements, inner.kinds.known().offers.iter());
        let count = inner.executors.values().filter(|state| set.contains(state.kind)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The pools whose executors meet `requirements`.
    pub(crate) fn pools(&self, requirements: &Requirements) -> BTreeSet<PoolName> {
        let KnownKinds { offers, .. } = self.kinds();
        let set = ProcessingSet::of(requirements, offers.iter());
        set.kinds().filter_map(|kind| Some(offers.get(kind)?.name.clone())).collect()
    }
}

impl Inner {
    /// Notes the images of an executor that `had` others.
    fn images_of(
        &mut self,
        executor: &ExecutorId,
        had: Arc<BTreeSet<ActionKey>>,
        images: &[ActionKey],
    ) -> Arc<BTreeSet<ActionKey>> {
        if had.len() == images.len() && images.iter().all(|image| had.contains(image)) {
            return had;
        }
        let images: BTreeSet<ActionKey> = images.iter().take(IMAGES_SAID).copied().collect();
        self.forget_images(executor, had.difference(&images));
        for image in images.difference(&had) {
            self.images.entry(*image).or_default().insert(executor.clone());
        }
        Arc::new(images)
    }

    fn forget_images<'a>(&mut self, executor: &ExecutorId, images: impl IntoIterator<Item = &'a ActionKey>) {
        for image in images {
            let Some(holders) = self.images.get_mut(image) else { continue };
            holders.remove(executor);
            if holders.is_empty() {
                self.images.remove(image);
            }
        }
    }

    fn executors_at(&self, homes: &[ExecutorHome]) -> Vec<ExecutorId> {
        homes.iter().filter_map(|home| self.homes.get(home)).cloned().collect()
    }

    /// Updates the entry of an executor among those with room. Returns whether it has room.
    fn sort(&mut self, executor: &ExecutorId) -> bool {
        let Some(state) = self.executors.get(executor) else { return false };
        let is_open = state.is_ready && state.room.is_open();
        if is_open {
            self.open.entry(state.kind).or_default().insert(executor.clone());
        } else if let Some(open) = self.open.get_mut(&state.kind) {
            open.remove(executor);
            if open.is_empty() {
                self.open.remove(&state.kind);
            }
        }
        is_open
    }

    /// Takes an executor out of its kind, if `next` is another one: shared services have started or ended there.
    fn leave_kind(&mut self, executor: &ExecutorId, next: usize) {
        let Some(state) = self.executors.get(executor).filter(|state| state.kind != next) else { return };
        let (kind, capacity) = (state.kind, state.capacity.clone());
        if let Some(open) = self.open.get_mut(&kind) {
            open.remove(executor);
            if open.is_empty() {
                self.open.remove(&kind);
            }
        }
        let others = self.executors.iter().filter(|(id, other)| *id != executor && other.kind == kind);
        self.kinds.remove(kind, &capacity, others.map(|(_, other)| &other.capacity));
    }

    fn remove(&mut self, executor: &ExecutorId) {
        if let Some(state) = self.executors.get_mut(executor) {
            state.is_ready = false;
            self.sort(executor);
        }
        let Some(state) = self.executors.remove(executor) else { return };
        self.forget_images(executor, state.images.iter());
        if self.homes.get(&state.home) == Some(executor) {
            self.homes.remove(&state.home);
        }
        let left = self.executors.values().filter(|other| other.kind == state.kind);
        self.kinds.remove(state.kind, &state.capacity, left.map(|other| &other.capacity));
    }
}

#[cfg(test)]
mod tests;
