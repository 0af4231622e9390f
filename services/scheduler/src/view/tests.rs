use std::sync::Arc;

use model::{Demand, GrantNotice, KeptRoom, Millis, Priority, Room, Urgency, WindowState};
use policy::actions::{Ask, Grant, GrantRules, Queue, Standing, Waiter, grant};

use super::*;

fn id(name: &str) -> ExecutorId {
    name.parse().unwrap()
}

fn pool() -> PoolName {
    "default".parse().unwrap()
}

/// The kind of all executors here.
fn kind() -> BTreeSet<usize> {
    BTreeSet::from([0])
}

fn set(view: &View) -> Arc<ProcessingSet> {
    Arc::new(ProcessingSet::of(&Requirements::default(), view.kinds().offers.iter()))
}

fn execution() -> ExecutionKey {
    ExecutionKey {
        group: "default".parse().unwrap(),
        id: "01a20147-c802-7698-9ec9-52bb8002bcae".parse().unwrap(),
    }
}

fn room(number: u64, granted: u64, starts: u16) -> Room {
    Room { number, granted, free: Resources::new(2000, 4 << 30), starts, idle: true, ..Room::default() }
}

fn heartbeat(name: &str, status: ExecutorStatus) -> ExecutorHeartbeat {
    ExecutorHeartbeat {
        executor: id(name),
        pool: pool(),
        host: String::new(),
        home: name.parse().unwrap(),
        pid: 1,
        started_at_ms: Millis(0),
        status,
        executor_type: model::ExecutorType::x86(),
        slots: 2,
        properties: BTreeMap::new(),
        root_is_input: false,
        capacity: Resources::new(2000, 4 << 30),
        held: Resources::default(),
        running: Vec::new(),
        room: room(1, 0, 2),
        window: WindowState::default(),
        images: Vec::new(),
        image_names: Vec::new(),
        shared_services: Vec::new(),
        ttl_ms: 60_000,
        clock_skew_ms: None,
    }
}

/// A view of these executors, each with room for two.
fn of(names: &[&str]) -> View {
    let view = View::default();
    for name in names {
        view.heartbeat(&heartbeat(name, ExecutorStatus::Ready));
    }
    view
}

/// The executors with room.
fn open(view: &View) -> Vec<(ExecutorId, u32)> {
    let open = view.open_executors(&kind(), 10, &BTreeSet::new(), &mut Random::new(1));
    let mut open: Vec<_> = open.into_iter().map(|it| (it.ask.executor, it.ask.starts)).collect();
    open.sort();
    open
}

fn granted(name: &str, number: u64, starts: u16) -> GrantNotice {
    GrantNotice { executor: id(name), number, size: Resources::new(1000, 1 << 30), starts, ahead: 0 }
}

#[test]
fn an_executor_is_open_until_its_room_is_granted() {
    let view = of(&["one", "two"]);
    assert_eq!(open(&view), [(id("one"), 2), (id("two"), 2)]);
    assert!(view.granted(&granted("one", 1, 2)) && !view.granted(&granted("one", 1, 2)));
    assert_eq!(open(&view), [(id("two"), 2)]);
    assert!(view.report(&RoomReport { executor: id("one"), room: room(2, 1, 1) }));
    assert_eq!((open(&view), view.room(&kind(), 100)), (vec![(id("one"), 1), (id("two"), 2)], 3));
    view.outdated(&id("two"), 1);
    assert_eq!(open(&view), [(id("one"), 1)]);
}

#[test]
fn an_executor_that_drains_or_is_lost_is_not_open() {
    let view = of(&["one", "two"]);
    view.heartbeat(&heartbeat("one", ExecutorStatus::Draining));
    view.lost(&id("two"));
    assert!(!view.has_room(&kind()) && view.open_kinds().is_empty());
    assert!(!view.report(&RoomReport { executor: id("two"), room: room(2, 0, 2) }), "it is unknown");
    assert_eq!(view.members(&kind()).len(), 1);
    view.heartbeat(&heartbeat("one", ExecutorStatus::Gone));
    assert!(view.members(&kind()).is_empty());
}

#[test]
fn of_many_a_few_are_drawn_and_those_where_it_is_warm() {
    let names: Vec<String> = (0..50).map(|number| format!("executor-{number}")).collect();
    let view = of(&names.iter().map(String::as_str).collect::<Vec<_>>());
    view.note_warm(&execution(), vec!["executor-7".parse().unwrap(), "elsewhere".parse().unwrap()]);
    let warm = view.warm_at(&execution());
    assert_eq!(warm, [id("executor-7")]);
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let wanted = warm.iter().cloned().collect();
        let open = view.open_executors(&kind(), 5, &wanted, &mut Random::new(seed));
        assert!((5..=6).contains(&open.len()));
        assert!(open.iter().any(|it| it.ask.executor == warm[0]));
        seen.extend(open.into_iter().map(|it| it.ask.executor));
    }
    assert!(seen.len() > 30, "{}", seen.len());
    view.forget_warm(&execution());
    assert!(view.warm_at(&execution()).is_empty());
}

fn waiter(view: &View, demand: Demand) -> Waiter {
    Waiter { key: execution(), demand, holders: Vec::new(), warm_at: Vec::new(), set: set(view), score: 0 }
}

#[test]
fn room_that_is_kept_is_granted_to_an_emergency_alone() {
    let view = of(&["one"]);
    let one_slot = Resources::new(1000, 2 << 30);
    let kept = KeptRoom { starts: 1, resources: one_slot.clone() };
    let report = Room { free: Resources::new(2000, 4 << 30), kept, idle: false, ..room(2, 0, 2) };
    let decide = |band| {
        let urgency = Urgency { band, priority: 0 };
        let demand = Demand { size: one_slot.clone(), urgency, ..Demand::default() };
        let waiter = waiter(&view, demand);
        let standing = Standing { used: 0.0, held: 0.0, weight: 1 };
        let queue = Queue { standing, share: None, waiting: vec![waiter], unread: None };
        let open = view.open_executors(&kind(), 10, &BTreeSet::new(), &mut Random::new(1));
        let asks: Vec<Ask> = open.into_iter().map(|it| it.ask).collect();
        let rules = GrantRules { custom_patience: Duration::ZERO, affinity_wait: Duration::ZERO };
        let grants: Vec<Grant> = grant(&[queue], &asks, &Vec::new, rules, Millis(0)).grants;
        grants.len()
    };
    view.report(&RoomReport { executor: id("one"), room: report });
    assert_eq!(decide(Priority::Interactive), 1);
    let size = Resources::new(1000, 2 << 30);
    view.granted(&GrantNotice { executor: id("one"), number: 1, size, starts: 1, ahead: 0 });
    assert_eq!([decide(Priority::Interactive), decide(Priority::Emergency)], [0, 1], "after a grant too");
}

#[test]
fn executors_that_offer_the_same_are_of_one_kind() {
    let view = of(&["one", "two"]);
    let large = ExecutorHeartbeat {
        capacity: Resources::new(8000, 4 << 30),
        ..heartbeat("large", ExecutorStatus::Ready)
    };
    view.heartbeat(&large);
    assert_eq!(view.kinds().offers.len(), 1);
    assert_eq!(view.capacity(&Requirements::default()), large.capacity);
    let properties = BTreeMap::from([("gpu".to_owned(), vec!["a100".to_owned()])]);
    view.heartbeat(&ExecutorHeartbeat { properties, ..heartbeat("gpu", ExecutorStatus::Ready) });
    let (kinds, gpu) = (view.kinds(), Requirements::of([("gpu", "a100")]));
    assert_eq!(ProcessingSet::of(&gpu, kinds.offers.iter()).kinds().collect::<Vec<_>>(), [1]);
    assert_eq!(view.capacity(&gpu), Resources::new(2000, 4 << 30));
    assert_eq!(view.pools(&gpu), BTreeSet::from([pool()]));
    view.lost(&id("large"));
    assert_eq!(view.capacity(&Requirements::default()), Resources::new(2000, 4 << 30), "the largest left");
    assert_ne!(view.kinds().version, kinds.version);
}

/// A heartbeat of an executor on which these shared services run.
fn serving(name: &str, number: u64, services: &[model::SharedServicesId]) -> ExecutorHeartbeat {
    ExecutorHeartbeat {
        shared_services: services.to_vec(),
        room: room(number, 0, 2),
        ..heartbeat(name, ExecutorStatus::Ready)
    }
}

#[tokio::test(start_paused = true)]
async fn what_uses_shared_services_goes_where_they_run_as_long_as_they_do() {
    let view = of(&["one", "two"]);
    let services = model::SharedServicesId::generate();
    let users = Requirements::of([("forebay-shared-services", services.to_string().as_str())]);
    let able = || ProcessingSet::of(&users, view.kinds().offers.iter()).kinds().collect::<BTreeSet<usize>>();
    assert!(able().is_empty());
    assert_eq!(view.capacity(&users), Resources::new(2000, 4 << 30), "they may run on any executor");
    view.heartbeat(&serving("one", 2, &[services]));
    let members: Vec<ExecutorId> = view.members(&able()).into_iter().map(|it| it.executor).collect();
    assert_eq!(members, [id("one")]);
    assert!(view.has_room(&able()));
    assert_eq!(open(&view), [(id("two"), 2)], "it is of another kind");
    let all = view.open_executors(&view.open_kinds(), 10, &BTreeSet::new(), &mut Random::new(1));
    assert_eq!(all.len(), 2, "it also runs what uses no services");
    view.heartbeat(&serving("one", 3, &[]));
    assert!(!view.has_room(&able()) && view.members(&able()).is_empty());
    assert_eq!(open(&view).len(), 2);
    // The kinds of services that have ended are used again, but not for those that a decision may still mean.
    let kinds = |view: &View| view.kinds().offers.len();
    assert_eq!(kinds(&view), 2);
    let next = model::SharedServicesId::generate();
    view.heartbeat(&serving("one", 4, &[next]));
    assert_eq!(kinds(&view), 3);
    view.lost(&id("one"));
    tokio::time::advance(Duration::from_secs(61)).await;
    for _ in 0..10 {
        for number in [5, 6] {
            let ids = [model::SharedServicesId::generate()];
            view.heartbeat(&serving("three", number, &ids));
        }
        view.lost(&id("three"));
        tokio::time::advance(Duration::from_secs(61)).await;
    }
    assert_eq!(kinds(&view), 3);
}

#[test]
fn an_executor_that_has_the_image_is_compared_even_if_many_others_have_room() {
    let names: Vec<String> = (0..50).map(|number| format!("executor-{number}")).collect();
    let view = of(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let image = model::ActionKey(7);
    let images = model::ImageDemand { image: Some(image), registry: model::ActionKey(1) };
    let demand = Demand { images: Some(images), ..Demand::default() };
    let waiter = waiter(&view, demand);
    let has = |images: Vec<model::ActionKey>, number| ExecutorHeartbeat {
        images,
        room: room(number, 0, 2),
        ..heartbeat("executor-7", ExecutorStatus::Ready)
    };
    view.heartbeat(&has(vec![image], 2));
    let wanted = view.wanted([&waiter].into_iter());
    assert_eq!(wanted, BTreeSet::from([id("executor-7")]));
    let open = view.open_executors(&kind(), 5, &wanted, &mut Random::new(1));
    let that = open.iter().find(|it| it.ask.executor == id("executor-7")).unwrap();
    assert!(that.ask.images.contains(&image));
    view.heartbeat(&has(Vec::new(), 3));
    assert!(view.wanted([&waiter].into_iter()).is_empty(), "it was removed there");
}
