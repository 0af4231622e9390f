//! A Redis server for each test, and events as a scheduler would read them.

use std::time::Duration;

use farm::Servers;
use index::{
    Applied, Index,
    actions::{Actions, Change, Committed, Effects, Event, Grant, Heads, Heard, MergeKey, Move, Open},
};
use model::{
    Demand, DigestFunction, ExecutionId, ExecutionKey, ExecutorHeartbeat, ExecutorId, ExecutorStatus, Millis,
    PoolName, Requirements, RequirementsId, Resources, Sequence, Urgency, WindowState,
};
use policy::actions::Place;

pub(crate) const GRACE: Duration = Duration::from_millis(100);
pub(crate) const NOW: Millis = Millis(1_000_000);
pub(crate) const LATER: Millis = Millis(2_000_000);

pub(crate) struct Test {
    pub(crate) servers: Servers,
    pub(crate) actions: Actions,
    pub(crate) last: u64,
}

pub(crate) fn key(group: &str) -> ExecutionKey {
    ExecutionKey { group: group.parse().unwrap(), id: ExecutionId::generate() }
}

pub(crate) fn id(text: &str) -> ExecutorId {
    text.parse().unwrap()
}

pub(crate) fn pool() -> PoolName {
    "default".parse().unwrap()
}

pub(crate) fn heartbeat(executor: &str, running: &[ExecutionKey]) -> ExecutorHeartbeat {
    ExecutorHeartbeat {
        executor: id(executor),
        pool: pool(),
        host: "machine".into(),
        home: "home".parse().unwrap(),
        pid: 1,
        started_at_ms: NOW,
        status: ExecutorStatus::Ready,
        executor_type: model::ExecutorType::x86(),
        slots: 2,
        properties: std::collections::BTreeMap::new(),
        root_is_input: false,
        capacity: Resources::new(2000, 1_000_000_000),
        held: Resources::default(),
        running: running.to_vec(),
        room: model::Room::default(),
        window: WindowState::default(),
        images: Vec::new(),
        image_names: Vec::new(),
        shared_services: Vec::new(),
        ttl_ms: 900_000,
        clock_skew_ms: None,
    }
}

/// The key under which executions of the group's action are merged.
pub(crate) fn merge(group: &str) -> MergeKey {
    MergeKey::named(None, &group.parse().unwrap(), &DigestFunction::Sha256.digest(b"a"), "")
}

/// A grant of one ESU by a scheduler that knows the grants to the executor up to number `after`.
pub(crate) fn grant_of(key: &ExecutionKey, executor: &str, after: u64) -> Grant {
    Grant {
        key: key.clone(),
        executor: id(executor),
        pool: pool(),
        after,
        claims_max: u32::MAX,
        hedge_at: None,
        cost: 1000,
        notice: None,
    }
}

/// A client's priority in the default band.
fn inside(priority: i32) -> Urgency {
    Urgency { priority, ..Urgency::default() }
}

impl Test {
    /// Starts with a ready, empty index.
    pub(crate) async fn start() -> Self {
        let servers = Servers::prepare(0);
        servers.start_redis().await;
        // What the index needs is what users of a farm with access control have.
        servers.limit_redis(&index::acl_rules());
        let actions = Index::connect(&servers.redis_url(), true).await.unwrap().actions();
        let test = Self { servers, actions, last: 0 };
        test.rebuild(&[], &[]).await;
        test
    }

    pub(crate) async fn rebuild(&self, events: &[Event], awaited: &[ExecutorId]) {
        let token = self.actions.begin_rebuild().await.unwrap().unwrap();
        let all: Vec<&Event> = events.iter().collect();
        assert!(matches!(self.actions.load(&token, &all, NOW).await.unwrap(), Applied::Done(_)));
        let (hold, guard) = (NOW.after(Duration::from_millis(500)), NOW.after(Duration::from_secs(15)));
        let done = self.actions.finish_rebuild(&token, Sequence(self.last), awaited, hold, guard).await;
        assert!(done.unwrap());
    }

    /// A demand of one ESU.
    pub(crate) fn demand(urgency: Urgency) -> Demand {
        let size = Resources::new(1000, 100_000_000);
        Demand { size, urgency, since_ms: NOW, ..Demand::default() }
    }

    fn opens(&mut self, key: &ExecutionKey, step: Move, urgency: Urgency, invocation: &str) -> Event {
        self.last += 1;
        let open = Open {
            until: LATER,
            demand: Self::demand(urgency),
            cost: 1000,
            place: Place::Turn { flow: invocation.to_owned(), charge: 1000 },
            merge: Some(merge(key.group.as_str())),
            record: format!("record {key}").into_bytes(),
        };
        let change = Change::Open(step, Box::new(open));
        Event { key: key.clone(), sequence: Sequence(self.last), change }
    }

    pub(crate) fn waits(&mut self, key: &ExecutionKey, priority: i32) -> Event {
        self.waits_as(key, inside(priority))
    }

    pub(crate) fn waits_as(&mut self, key: &ExecutionKey, urgency: Urgency) -> Event {
        self.opens(key, Move::Waits, urgency, "")
    }

    pub(crate) fn waits_in(&mut self, key: &ExecutionKey, invocation: &str) -> Event {
        self.opens(key, Move::Waits, Urgency::default(), invocation)
    }

    /// An execution in the default band that has requirements.
    pub(crate) fn requires(&mut self, key: &ExecutionKey, requirements: &Requirements) -> Event {
        let mut event = self.waits(key, 0);
        if let Change::Open(_, open) = &mut event.change {
            open.demand.requirements = requirements.clone();
        }
        event
    }

    /// An execution in the default band with a fixed place.
    pub(crate) fn waits_at(&mut self, key: &ExecutionKey, number: u64) -> Event {
        let mut event = self.waits(key, 0);
        if let Change::Open(_, open) = &mut event.change {
            open.place = Place::Fixed(number);
        }
        event
    }

    pub(crate) fn raised(&mut self, key: &ExecutionKey, priority: i32) -> Event {
        self.opens(key, Move::Stays, inside(priority), "")
    }

    pub(crate) fn hedged(&mut self, key: &ExecutionKey) -> Event {
        self.opens(key, Move::Hedged, Urgency::default(), "")
    }

    pub(crate) fn copy_ended(&mut self, key: &ExecutionKey, executor: &str) -> Event {
        self.opens(key, Move::CopyEnded(id(executor)), Urgency::default(), "")
    }

    pub(crate) fn finished(&mut self, key: &ExecutionKey, executor: Option<&str>) -> Event {
        self.ends(key, executor, 0)
    }

    /// An end whose cost exceeded the estimate by `beyond`.
    pub(crate) fn finished_beyond(&mut self, key: &ExecutionKey, executor: &str, beyond: i64) -> Event {
        self.ends(key, Some(executor), beyond)
    }

    fn ends(&mut self, key: &ExecutionKey, executor: Option<&str>, beyond: i64) -> Event {
        self.last += 1;
        let change = Change::Finished {
            executor: executor.map(id),
            merge: Some(merge(key.group.as_str())),
            beyond: (beyond != 0).then(|| (String::new(), beyond)),
        };
        Event { key: key.clone(), sequence: Sequence(self.last), change }
    }

    pub(crate) async fn apply(&self, events: &[Event]) -> Effects {
        self.apply_at(events, NOW).await
    }

    pub(crate) async fn apply_at(&self, events: &[Event], now: Millis) -> Effects {
        self.apply_all(events, &[], now).await
    }

    pub(crate) async fn apply_granting(&self, events: &[Event], grants: &[Grant]) -> Effects {
        self.apply_all(events, grants, NOW).await
    }

    async fn apply_all(&self, events: &[Event], grants: &[Grant], now: Millis) -> Effects {
        let from = Sequence(events.first().unwrap().sequence.0 - 1);
        let all: Vec<&Event> = events.iter().collect();
        match self.actions.apply(from, Sequence(self.last), &all, grants, now).await.unwrap() {
            Applied::Done(effects) => effects,
            other @ (Applied::Gap(_) | Applied::Empty | Applied::Rebuilding | Applied::Lost) => {
                panic!("{other:?}")
            }
        }
    }

    /// Accepts `count` executions of equal priority.
    pub(crate) async fn accept(&mut self, count: usize) -> Vec<ExecutionKey> {
        let keys: Vec<ExecutionKey> = (0..count).map(|_| key("g")).collect();
        let events: Vec<Event> = keys.iter().map(|key| self.waits(key, 0)).collect();
        self.apply(&events).await;
        keys
    }

    pub(crate) async fn heads(&self, now: Millis) -> Heads {
        self.actions.heads(now, 100, GRACE, &[RequirementsId::none()], &[pool()]).await.unwrap()
    }

    /// The waiting executions, group by group.
    pub(crate) async fn waiting(&self, now: Millis) -> Vec<ExecutionKey> {
        let heads = self.heads(now).await;
        let groups = heads.queues.into_iter().flat_map(|queue| queue.groups);
        groups.flat_map(|head| head.waiting).map(|waiting| waiting.key).collect()
    }

    /// The resources that group g holds, in ESU.
    pub(crate) async fn held(&mut self) -> f64 {
        let one = self.accept(1).await;
        let held = self.heads(NOW).await.uses[&pool()][0].held;
        let events = [self.finished(&one[0], None)];
        self.apply(&events).await;
        held
    }

    pub(crate) async fn announce(&self, heartbeat: &ExecutorHeartbeat) -> Heard {
        self.actions.announce(heartbeat, b"heartbeat", NOW, GRACE).await.unwrap()
    }

    /// Commits an execution to an executor, if that is still possible.
    pub(crate) async fn commit(&self, key: &ExecutionKey, executor: &str) -> Option<(u64, Sequence, String)> {
        self.grant(key, executor, None).await
    }

    pub(crate) async fn commit_hedged(
        &self,
        key: &ExecutionKey,
        executor: &str,
        at: Millis,
    ) -> Option<(u64, Sequence, String)> {
        self.grant(key, executor, Some(at)).await
    }

    /// Grants to an executor whose last grant the caller does not know.
    async fn grant(
        &self,
        key: &ExecutionKey,
        executor: &str,
        hedge_at: Option<Millis>,
    ) -> Option<(u64, Sequence, String)> {
        let mut after = 0;
        loop {
            let grant = Grant { hedge_at, ..grant_of(key, executor, after) };
            match self.actions.commit(&[grant], NOW).await.unwrap().remove(0) {
                Committed::Granted { number, sequence, record } => return Some((number, sequence, record)),
                Committed::NotGranted | Committed::Full => return None,
                Committed::Outdated { number, .. } => after = number,
            }
        }
    }

    pub(crate) async fn grant_after(&self, key: &ExecutionKey, executor: &str, after: u64) -> Committed {
        let grant = grant_of(key, executor, after);
        self.actions.commit(&[grant], NOW).await.unwrap().remove(0)
    }

    /// The numbers of waiting and running executions.
    pub(crate) async fn counts(&self) -> (u64, u64) {
        let queue = self.actions.queue(&RequirementsId::none(), [&pool()], None, NOW).await.unwrap();
        (queue.waiting, queue.running)
    }
}
