use std::collections::{BTreeMap, HashSet};

use model::{Amount, ExecutionId, ExecutorType, ImageDemand, Pool, Priority, Requirements};
use proptest::prelude::*;

use super::*;
use crate::actions::fair::Standing;

const RULES: GrantRules =
    GrantRules { custom_patience: Duration::from_secs(30), affinity_wait: Duration::from_millis(500) };
const NOW: Millis = Millis(1_000_000);

fn cpus(count: u64) -> Resources {
    Resources::new(count * 1000, count)
}

fn gpus(count: u32) -> Resources {
    let custom = BTreeMap::from([("gpu".parse().unwrap(), Amount::whole(count))]);
    Resources { custom, ..cpus(1) }
}

/// The set of an execution that executors of kind 0 can run.
fn anywhere() -> Arc<ProcessingSet> {
    in_kinds(&[0])
}

fn in_kinds(kinds: &[usize]) -> Arc<ProcessingSet> {
    let wanted: Vec<String> = kinds.iter().map(ToString::to_string).collect();
    let pool = |kind: usize| Pool {
        name: "p".parse().unwrap(),
        properties: [("hwgroup".to_owned(), vec![kind.to_string()])].into(),
        root_is_input: false,
        capacity: Resources::default(),
        executor_type: ExecutorType::x86(),
    };
    let pools: Vec<Pool> = (0..4).map(pool).collect();
    let wanted = wanted.join("|");
    Arc::new(ProcessingSet::of(&Requirements::of([("hwgroup", wanted.as_str())]), &pools))
}

fn waiter(size: Resources) -> Waiter {
    let key = ExecutionKey { group: "g".parse().unwrap(), id: ExecutionId::generate() };
    let demand = Demand { size, since_ms: NOW, ..Demand::default() };
    Waiter { key, demand, holders: Vec::new(), warm_at: Vec::new(), set: anywhere(), score: 0 }
}

fn waiters(count: usize, size: &Resources) -> Vec<Waiter> {
    (0..count).map(|_| waiter(size.clone())).collect()
}

fn queue(waiting: Vec<Waiter>) -> Queue {
    Queue { standing: Standing { used: 0.0, held: 0.0, weight: 1 }, share: None, waiting, unread: None }
}

fn ask(name: &str, capacity: Resources, free: Resources) -> Ask {
    let starts = u32::try_from(capacity.cpu_millis / 1000).unwrap();
    let (executor, idle) = (name.parse().unwrap(), free == capacity);
    let (kept, images) = (KeptRoom::default(), Arc::default());
    Ask { executor, kind: 0, capacity, free, starts, kept, ahead: 0, idle, images, fetches: None }
}

fn idle(name: &str, count: u64) -> Ask {
    ask(name, cpus(count), cpus(count))
}

fn members(asks: &[Ask]) -> Vec<Member> {
    asks.iter()
        .map(|ask| Member { executor: ask.executor.clone(), kind: ask.kind, capacity: ask.capacity.clone() })
        .collect()
}

fn decide(queues: &[Queue], asks: &[Ask]) -> Vec<Grant> {
    grant(queues, asks, &|| members(asks), RULES, NOW).grants
}

fn keys(grants: &[Grant]) -> Vec<&ExecutionKey> {
    grants.iter().map(|grant| &grant.key).collect()
}

#[test]
fn one_answer_starts_as_many_as_fit() {
    let grants = decide(&[queue(waiters(20, &cpus(1)))], &[idle("x", 8)]);
    assert_eq!(grants.len(), 8);
    assert!(grants.iter().all(|grant| !grant.ahead));
}

#[test]
fn a_decision_ends_at_the_turn_of_what_was_not_read() {
    let asks = [idle("x", 8)];
    let decide = |queues: &[Queue]| grant(queues, &asks, &|| members(&asks), RULES, NOW);
    let behind = |waiting, unread| Queue { unread: Some(unread), ..queue(waiting) };
    let held = |held, queue| Queue { standing: Standing { used: 0.0, held, weight: 1 }, ..queue };
    let other = || held(3.0, queue(waiters(9, &cpus(1))));
    // After three executions the first group holds as much as the other one.
    let decision = decide(&[behind(waiters(2, &cpus(1)), Priority::Interactive), other()]);
    assert_eq!((decision.grants.len(), decision.is_cut), (2, true));
    let decision = decide(&[held(99.0, behind(Vec::new(), Priority::Interactive)), other()]);
    assert_eq!((decision.grants.len(), decision.is_cut), (8, false), "its turn never comes");
    let decision = decide(&[held(99.0, behind(Vec::new(), Priority::Emergency)), other()]);
    assert_eq!((decision.grants.len(), decision.is_cut), (0, true), "an emergency comes first");
    let decision = decide(&[queue(waiters(2, &cpus(1))), other()]);
    assert_eq!((decision.grants.len(), decision.is_cut), (8, false), "nothing is behind them");
}

#[test]
fn a_large_one_is_not_overtaken_by_small_ones_for_ever() {
    let large = waiter(cpus(8));
    let all = queue([vec![large.clone()], waiters(8, &cpus(1))].concat());
    let mut asks = [ask("x", cpus(8), cpus(5))];
    assert!(decide(std::slice::from_ref(&all), &asks).is_empty(), "room is kept for the large one");
    asks[0].free = cpus(8);
    assert_eq!(keys(&decide(std::slice::from_ref(&all), &asks)), [&large.key]);
    // Of two executors one is kept free; the other continues with the small ones.
    let both = [ask("x", cpus(8), cpus(5)), ask("y", cpus(8), cpus(5))];
    let grants = decide(&[all], &both);
    assert_eq!(grants.len(), 5);
    assert!(grants.iter().all(|grant| grant.ask == grants[0].ask));
}

#[test]
fn room_is_kept_on_more_executors_the_longer_it_is_needed() {
    let mut large = waiter(cpus(8));
    large.demand.since_ms = Millis(NOW.0 - 6000);
    let all = queue([vec![large], waiters(8, &cpus(1))].concat());
    let both = [ask("x", cpus(8), cpus(5)), ask("y", cpus(8), cpus(5))];
    assert!(decide(&[all], &both).is_empty());
}

#[test]
fn what_waits_for_a_gpu_lets_others_pass_and_keeps_the_gpu() {
    let busy = ask("x", Resources { cpu_millis: 8000, ..gpus(2) }, Resources { cpu_millis: 4000, ..gpus(1) });
    let busy = Ask { free: Resources { memory_bytes: 100, ..busy.free.clone() }, ..busy };
    let (both, one, plain) = (waiter(gpus(2)), waiter(gpus(1)), waiter(cpus(1)));
    let all = queue(vec![both.clone(), one, plain.clone()]);
    // One GPU is free, but it is reserved for the first execution, which needs two.
    assert_eq!(keys(&decide(&[all], &[busy])), [&plain.key]);
}

#[test]
fn after_a_while_room_is_kept_for_the_first_that_waits_for_a_gpu() {
    let capacity = Resources { cpu_millis: 8000, memory_bytes: 100, ..gpus(1) };
    let free = Resources { cpu_millis: 2000, memory_bytes: 100, ..Resources::default() };
    let mut gpu = waiters(5, &gpus(1));
    for waiter in &mut gpu {
        waiter.demand.since_ms = Millis(NOW.0 - 31_000);
    }
    let plain = waiters(8, &cpus(1));
    let grants = decide(&[queue([gpu, plain].concat())], &[ask("x", capacity, free)]);
    assert_eq!(grants.len(), 1, "of two free processors one is kept for the first, none for those behind it");
}

#[test]
fn an_exclusive_one_has_its_executor_for_itself() {
    let exclusive = || {
        let mut waiter = waiter(cpus(1));
        waiter.demand.exclusive = true;
        waiter
    };
    let first = exclusive();
    let all = queue(vec![first.clone(), exclusive(), waiter(cpus(1))]);
    let grants = decide(std::slice::from_ref(&all), &[idle("x", 8)]);
    assert_eq!(keys(&grants), [&first.key]);
    assert_eq!(grants[0].size, cpus(8));
    assert!(decide(&[all], &[ask("x", cpus(8), cpus(7))]).is_empty(), "room is kept until it is idle");
}

#[test]
fn groups_take_turns_by_what_they_had() {
    let mut rich = queue(waiters(20, &cpus(1)));
    rich.standing.used = 50.0;
    let poor = queue(waiters(20, &cpus(1)));
    let of_poor = |grants: &[Grant]| {
        grants.iter().filter(|grant| poor.waiting.iter().any(|waiter| waiter.key == grant.key)).count()
    };
    let grants = decide(&[rich.clone(), poor.clone()], &[idle("x", 4)]);
    assert_eq!(of_poor(&grants), 4, "the group with less past use is first");
    let grants = decide(&[rich, poor.clone()], &[idle("x", 16)]);
    assert!((9..=12).contains(&of_poor(&grants)), "until both had the same");
}

#[test]
fn a_heavy_group_gets_more() {
    let mut heavy = queue(waiters(40, &cpus(1)));
    heavy.standing.weight = 3;
    let light = queue(waiters(40, &cpus(1)));
    let grants = decide(&[heavy.clone(), light], &[idle("x", 16)]);
    let of_heavy =
        grants.iter().filter(|grant| heavy.waiting.iter().any(|waiter| waiter.key == grant.key)).count();
    assert_eq!(of_heavy, 12);
}

#[test]
fn one_that_is_warm_on_the_executor_passes_those_that_came_with_it() {
    let mut waiting = waiters(10, &cpus(1));
    let asks = [idle("x", 1)];
    waiting[7].warm_at = vec![asks[0].executor.clone()];
    let warm = waiting[7].key.clone();
    assert_eq!(keys(&decide(&[queue(waiting.clone())], &asks)), [&warm]);
    let first = waiting[0].key.clone();
    for apart in [NOW.after(Duration::from_secs(1)), Millis(NOW.0 - 1000)] {
        let mut other = waiting.clone();
        other[7].demand.since_ms = apart;
        assert_eq!(
            keys(&decide(&[queue(other)], &asks)),
            [&first],
            "not those that came long before or after"
        );
    }
    waiting[0].demand.urgency.priority = -1;
    assert_eq!(keys(&decide(&[queue(waiting)], &asks)), [&first], "nor the more urgent");
}

#[test]
fn warm_ones_pass_the_first_by_a_few_times_their_own_cost_at_most() {
    let asks = [idle("x", 1)];
    let mut waiting = waiters(2, &cpus(1));
    waiting[1].warm_at = vec![asks[0].executor.clone()];
    waiting[1].demand.expected_ms = 100;
    let mut granted = |behind| {
        waiting[1].score = behind;
        keys(&decide(&[queue(waiting.clone())], &asks))[0] == &waiting[1].key
    };
    // 32 times 100 ms of one ESU.
    assert!(granted(3200) && !granted(3201));
}

#[test]
fn nothing_warm_passes_what_cannot_start_yet() {
    let mut waiting = [vec![waiter(cpus(8))], waiters(3, &cpus(1))].concat();
    let asks = [ask("x", cpus(8), cpus(4))];
    waiting[2].warm_at = vec![asks[0].executor.clone()];
    assert!(decide(&[queue(waiting)], &asks).is_empty());
}

#[test]
fn of_several_that_ask_the_one_where_it_is_warm_gets_it_then_the_emptier() {
    let mut one = waiter(cpus(1));
    let asks = [ask("x", cpus(8), cpus(2)), ask("y", cpus(8), cpus(7))];
    assert_eq!(decide(&[queue(vec![one.clone()])], &asks)[0].ask, 1);
    one.warm_at = vec![asks[0].executor.clone()];
    assert_eq!(decide(&[queue(vec![one])], &asks)[0].ask, 0);
}

#[test]
fn a_copy_never_goes_where_another_runs_and_what_failed_goes_elsewhere_first() {
    let mut copy = waiter(cpus(1));
    copy.holders = vec!["x".parse().unwrap()];
    assert!(decide(&[queue(vec![copy])], &[idle("x", 8)]).is_empty());
    let mut failed = waiter(cpus(1));
    failed.demand.avoid = vec!["x".parse().unwrap()];
    let asks = [idle("x", 8)];
    let others = [members(&asks), members(&[idle("y", 8)])].concat();
    let all = [queue(vec![failed.clone()])];
    assert!(grant(&all, &asks, &|| others.clone(), RULES, NOW).grants.is_empty(), "y will ask");
    assert_eq!(decide(&all, &asks).len(), 1, "there is no other executor");
    let later = NOW.after(AVOID_TIME + Duration::from_secs(1));
    assert_eq!(grant(&all, &asks, &|| others.clone(), RULES, later).grants.len(), 1, "y did not ask");
}

#[test]
fn what_is_taken_ahead_takes_no_room() {
    let mut asks = [ask("x", cpus(2), cpus(1))];
    asks[0].ahead = 3;
    let grants = decide(&[queue(waiters(10, &cpus(1)))], &asks);
    assert_eq!(grants.iter().map(|grant| grant.ahead).collect::<Vec<_>>(), [false, true, true, true]);
    // An execution that holds a GPU is assigned as late as possible.
    asks[0].starts = 0;
    assert!(decide(&[queue(waiters(2, &gpus(1)))], &asks).is_empty());
}

#[test]
fn what_an_executor_can_never_hold_does_not_block_it() {
    let all = queue([vec![waiter(cpus(16))], waiters(4, &cpus(1))].concat());
    assert_eq!(decide(&[all], &[idle("x", 4)]).len(), 4);
}

/// A group that holds `held` of its `share` ESU and has `count` executions waiting.
fn governed(held: u32, share: u32, used: f64, count: usize) -> Queue {
    let standing = Standing { used, held: f64::from(held), weight: 1 };
    Queue { standing, share: Some(f64::from(share)), waiting: waiters(count, &cpus(1)), unread: None }
}

#[test]
fn a_group_that_holds_its_share_waits_only_for_others() {
    // It used less in the past, which would otherwise let it go first.
    let (full, hungry) = (governed(8, 8, 0.0, 9), governed(0, 8, 1e6, 2));
    let of = |grants: &[Grant], queue: &Queue| {
        let is = |grant: &&Grant| queue.waiting.iter().any(|waiter| waiter.key == grant.key);
        grants.iter().filter(is).count()
    };
    let queues = [full, hungry];
    let grants = decide(&queues, &[idle("x", 2)]);
    assert_eq!([of(&grants, &queues[0]), of(&grants, &queues[1])], [0, 2]);
    let grants = decide(&queues, &[idle("x", 6)]);
    assert_eq!([of(&grants, &queues[0]), of(&grants, &queues[1])], [4, 2], "no other group wants the rest");
    let alone = [governed(8, 8, 0.0, 9)];
    assert_eq!(decide(&alone, &[idle("x", 6)]).len(), 6);
}

fn emergency(size: Resources) -> Waiter {
    let mut one = waiter(size);
    one.demand.urgency.band = Priority::Emergency;
    one
}

fn keeping(slots: u64, ask: Ask) -> Ask {
    Ask { kept: KeptRoom { starts: u16::try_from(slots).unwrap(), resources: cpus(slots) }, ..ask }
}

#[test]
fn an_emergency_comes_before_the_turns_of_other_groups() {
    let mut rich = queue([vec![emergency(cpus(1)), emergency(cpus(1))], waiters(4, &cpus(1))].concat());
    rich.standing.used = 1e6;
    let poor = queue(waiters(4, &cpus(1)));
    let grants = decide(&[poor.clone(), rich.clone()], &[idle("x", 3)]);
    let wanted: Vec<ExecutionKey> =
        rich.waiting.iter().take(2).chain(poor.waiting.first()).map(|waiter| waiter.key.clone()).collect();
    assert_eq!(keys(&grants), wanted.iter().collect::<Vec<_>>(), "then the group with less past use");
    (rich.share, rich.standing) = (Some(1.0), Standing { used: 0.0, held: 9.0, weight: 1 });
    let grants = decide(&[poor, rich], &[idle("x", 3)]);
    assert_eq!(
        keys(&grants),
        wanted.iter().collect::<Vec<_>>(),
        "although its group holds more than its share"
    );
}

#[test]
fn only_an_emergency_uses_the_room_that_is_kept() {
    let busy = || keeping(2, ask("x", cpus(8), cpus(4)));
    let others = decide(&[queue(waiters(8, &cpus(1)))], &[busy()]);
    assert_eq!(others.len(), 2, "of four free slots two are kept");
    let urgent = decide(&[queue((0..8).map(|_| emergency(cpus(1))).collect())], &[busy()]);
    assert_eq!(urgent.len(), 4);
    let large = decide(&[queue(vec![waiter(cpus(3))])], &[busy()]);
    assert!(large.is_empty(), "it would leave less than what is kept");
    let whole = waiter(cpus(8));
    let alone = decide(&[queue(vec![whole.clone(), waiter(cpus(1))])], &[keeping(2, idle("x", 8))]);
    assert_eq!(keys(&alone), [&whole.key], "on an idle executor the first starts, regardless of its needs");
}

proptest! {
    #[test]
    fn what_a_group_gets_beyond_its_share_no_other_group_below_its_share_wants(
        groups in prop::collection::vec((0_u32..12, 0_u32..12, 0.0..100.0_f64, 0_usize..12), 1..5),
        room in 1_u64..16,
    ) {
        let queues: Vec<Queue> =
            groups.iter().map(|(held, share, used, count)| governed(*held, *share, *used, *count)).collect();
        let grants = decide(&queues, &[idle("x", room)]);
        let got = |queue: &Queue| {
            let is = |grant: &&Grant| queue.waiting.iter().any(|waiter| waiter.key == grant.key);
            u32::try_from(grants.iter().filter(is).count()).unwrap()
        };
        let waiting: usize = queues.iter().map(|queue| queue.waiting.len()).sum();
        prop_assert_eq!(grants.len(), waiting.min(usize::try_from(room).unwrap()), "work-conserving");
        let share = |of: usize| (groups[of].0 + got(&queues[of]), groups[of].1);
        let exceeds = (0..groups.len()).any(|at| got(&queues[at]) > 0 && share(at).0 > share(at).1);
        for (at, queue) in queues.iter().enumerate() {
            let (held, of) = share(at);
            let still_waits = usize::try_from(got(queue)).unwrap() < queue.waiting.len();
            prop_assert!(!(exceeds && still_waits && held < of), "{held} of {of}");
        }
    }

    #[test]
    fn others_get_nothing_before_emergencies_nor_of_their_room(
        bands in prop::collection::vec((0_usize..4, 0_usize..3), 0..40), used in prop::collection::vec(0.0..1e3_f64, 3),
        free in 1_u64..9, kept in 0_u64..9,
    ) {
        let mut queues: Vec<Queue> = used.iter().map(|used| {
            let mut queue = queue(Vec::new());
            queue.standing.used = *used;
            queue
        }).collect();
        let mut bands = bands;
        bands.sort_unstable();
        for (band, group) in bands {
            let mut one = waiter(cpus(1));
            one.demand.urgency.band = Priority::ALL[band];
            queues[group].waiting.push(one);
        }
        let asks = [keeping(kept.min(free), ask("x", cpus(9), cpus(free)))];
        let asks = [Ask { starts: u32::try_from(free).unwrap(), ..asks[0].clone() }];
        let is_emergency = |key: &ExecutionKey| {
            queues.iter().flat_map(|queue| &queue.waiting)
                .any(|waiter| waiter.key == *key && waiter.demand.urgency.band.is_emergency())
        };
        let all = queues.iter().flat_map(|queue| &queue.waiting).filter(|it| is_emergency(&it.key)).count();
        let grants = decide(&queues, &asks);
        let urgent = grants.iter().filter(|grant| is_emergency(&grant.key)).count();
        prop_assert_eq!(urgent, all.min(usize::try_from(free).unwrap()));
        prop_assert!(grants.iter().take(urgent).all(|grant| is_emergency(&grant.key)));
        let left = usize::try_from(free).unwrap() - grants.len();
        prop_assert!(grants.len() == urgent || left >= usize::try_from(kept.min(free)).unwrap());
    }

    #[test]
    fn nothing_is_given_twice_nor_beyond_what_is_free(
        sizes in prop::collection::vec((1_u64..6, any::<bool>(), 0_usize..3), 0..40),
        frees in prop::collection::vec((1_u64..9, 0_u64..9, 0_u32..4), 1..5),
    ) {
        let mut queues = vec![queue(Vec::new()), queue(Vec::new()), queue(Vec::new())];
        for (size, exclusive, group) in sizes {
            let mut one = waiter(cpus(size));
            one.demand.exclusive = exclusive && size == 1;
            queues[group].waiting.push(one);
        }
        let asks: Vec<Ask> = frees
            .iter()
            .enumerate()
            .map(|(at, (all, free, ahead))| Ask {
                ahead: *ahead,
                ..ask(&format!("x{at}"), cpus(*all), cpus((*free).min(*all)))
            })
            .collect();
        let grants = decide(&queues, &asks);
        let distinct: HashSet<_> = grants.iter().map(|grant| &grant.key).collect();
        prop_assert_eq!(distinct.len(), grants.len());
        for (at, ask) in asks.iter().enumerate() {
            let mut started = Resources::default();
            for grant in grants.iter().filter(|grant| grant.ask == at && !grant.ahead) {
                started.add(&grant.size);
            }
            prop_assert!(started.fits(&ask.free), "{started:?} of {:?}", ask.free);
            let ahead = grants.iter().filter(|grant| grant.ask == at && grant.ahead).count();
            prop_assert!(ahead <= usize::try_from(ask.ahead).unwrap());
        }
        // An execution that could start on an idle executor does not wait while no other was granted.
        if grants.is_empty() && asks.iter().all(|ask| ask.idle) {
            let fits = |waiter: &Waiter| asks.iter().any(|ask| waiter.demand.size.fits(&ask.capacity));
            prop_assert!(!queues.iter().flat_map(|queue| &queue.waiting).any(fits));
        }
    }
}

#[test]
fn work_goes_to_any_executor_that_meets_its_requirements_and_to_no_other() {
    let of_kind = |name: &str, kind: usize| Ask { kind, ..idle(name, 2) };
    let asks = [of_kind("a", 0), of_kind("b", 1), of_kind("c", 2)];
    let either = |count: usize| -> Vec<Waiter> {
        waiters(count, &cpus(1)).into_iter().map(|it| Waiter { set: in_kinds(&[0, 1]), ..it }).collect()
    };
    let on = |grants: &[Grant]| grants.iter().map(|grant| grant.ask).collect::<Vec<_>>();
    let grants = decide(&[queue(either(6))], &asks);
    assert_eq!(on(&grants), [0, 1, 0, 1], "shares by free room, and nothing on c");
    let grants = decide(&[queue(either(6))], &asks[1..]);
    assert_eq!(on(&grants), [0, 0], "without a, all on b");
    assert_eq!(decide(&[queue(either(6))], &asks[2..]), []);
}

#[test]
fn room_is_reserved_only_on_executors_that_meet_the_requirements() {
    let large = Waiter { set: in_kinds(&[1]), ..waiter(cpus(2)) };
    let busy = |name: &str, kind: usize| Ask { kind, idle: false, ..ask(name, cpus(2), cpus(1)) };
    let small = waiter(cpus(1));
    let all = queue(vec![large, small.clone()]);
    let grants = decide(&[all], &[busy("a", 0), busy("b", 1)]);
    assert_eq!(keys(&grants), [&small.key]);
}

fn in_image(image: u64, registry: u64) -> Waiter {
    let images = ImageDemand { image: Some(ActionKey(image)), registry: ActionKey(registry) };
    let plain = waiter(cpus(1));
    Waiter { demand: Demand { images: Some(images), ..plain.demand.clone() }, ..plain }
}

fn having(image: u64, ask: Ask) -> Ask {
    Ask { images: Arc::new([ActionKey(image)].into()), ..ask }
}

#[test]
fn an_execution_goes_where_its_image_is_even_if_it_is_warm_elsewhere() {
    let asks = [idle("empty", 8), having(1, idle("has", 2)), idle("warm", 8)];
    let mut one = in_image(1, 9);
    one.warm_at = vec![asks[2].executor.clone()];
    let grants = decide(&[queue(vec![one, waiter(cpus(1))])], &asks);
    assert_eq!(grants.iter().map(|grant| grant.ask).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn a_registry_that_hangs_keeps_only_those_waiting_that_need_it() {
    let full = FetchRoom { left: 1, full: vec![ActionKey(9)] };
    let asks = [Ask { fetches: Some(full), ..having(1, idle("x", 4)) }];
    let waiting = vec![in_image(2, 9), in_image(3, 8), in_image(4, 8), in_image(1, 9), waiter(cpus(1))];
    let wanted: Vec<ExecutionKey> = [1, 3, 4].map(|at: usize| waiting[at].key.clone()).into();
    let grants = decide(&[queue(waiting)], &asks);
    assert_eq!(grants.iter().map(|grant| grant.key.clone()).collect::<Vec<_>>(), wanted);
}
