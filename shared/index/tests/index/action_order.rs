//! The order in which executions wait: bands, priorities, turns of invocations and groups, fixed places.

use std::time::Duration;

use crate::support::{GRACE, NOW, Test, id, key, pool};
use index::actions::{Backlog, Change, Effects, Event};
use model::{ExecutionKey, Priority, Requirements, RequirementsId, Urgency};

#[tokio::test]
async fn a_raised_priority_moves_what_waits_and_leaves_what_runs() {
    let mut test = Test::start().await;
    let keys = test.accept(3).await;
    test.commit(&keys[0], "x").await.unwrap();
    let events = [test.raised(&keys[0], -5), test.raised(&keys[2], -5)];
    assert_eq!(
        test.apply(&events).await,
        Effects { applied_here: true, was_first: true, ..Effects::default() }
    );
    assert_eq!(test.waiting(NOW).await, [keys[2].clone(), keys[1].clone()]);
    assert_eq!(test.counts().await, (2, 1));
}

#[tokio::test]
async fn the_band_comes_before_the_priority_of_the_client() {
    let mut test = Test::start().await;
    let keys: Vec<ExecutionKey> = (0..5).map(|_| key("g")).collect();
    let urgencies = [
        (Priority::Batch, i32::MIN),
        (Priority::Automated, 0),
        (Priority::Interactive, 7),
        (Priority::Interactive, -7),
        (Priority::Emergency, i32::MAX),
    ];
    let of = |(band, priority)| Urgency { band, priority };
    let events: Vec<Event> =
        keys.iter().zip(urgencies).map(|(key, urgency)| test.waits_as(key, of(urgency))).collect();
    test.apply(&events).await;
    let wanted: Vec<ExecutionKey> = [4, 3, 2, 1, 0].map(|at: usize| keys[at].clone()).into();
    assert_eq!(test.waiting(NOW).await, wanted);
}

#[tokio::test]
async fn invocations_of_a_group_take_turns() {
    let mut test = Test::start().await;
    let many: Vec<ExecutionKey> = (0..20).map(|_| key("g")).collect();
    let few: Vec<ExecutionKey> = (0..4).map(|_| key("g")).collect();
    let mut events: Vec<Event> = many.iter().map(|key| test.waits_in(key, "many")).collect();
    events.extend(few.iter().map(|key| test.waits_in(key, "few")));
    test.apply(&events).await;
    let order = test.waiting(NOW).await;
    let last = order.iter().position(|key| *key == few[3]).unwrap();
    assert!(last <= 8, "the smaller invocation waits behind {last}");
    // An invocation that arrives after others have run for a while starts at their current start tag, not before.
    for key in order.iter().take(12) {
        test.commit(key, "x").await.unwrap();
    }
    let late = key("g");
    let events = [test.waits_in(&late, "late")];
    test.apply(&events).await;
    let order = test.waiting(NOW).await;
    assert!(order.iter().position(|key| *key == late).unwrap() <= 2);
}

#[tokio::test]
async fn an_invocation_does_not_wait_behind_those_that_a_late_one_of_another_overtook() {
    let mut test = Test::start().await;
    let many: Vec<ExecutionKey> = (0..20).map(|_| key("g")).collect();
    let events: Vec<Event> = many.iter().map(|key| test.waits_in(key, "many")).collect();
    test.apply(&events).await;
    // The last one starts first, for example where its files are.
    test.commit(&many[19], "x").await.unwrap();
    let few: Vec<ExecutionKey> = (0..2).map(|_| key("g")).collect();
    let events: Vec<Event> = few.iter().map(|key| test.waits_in(key, "few")).collect();
    test.apply(&events).await;
    let wanted = [&many[0], &few[0], &many[1], &few[1], &many[2]].map(ExecutionKey::clone);
    assert_eq!(test.waiting(NOW).await[..5], wanted);
}

#[tokio::test]
async fn ever_new_invocations_do_not_stop_another() {
    let mut test = Test::start().await;
    let victim: Vec<ExecutionKey> = (0..5).map(|_| key("g")).collect();
    let mut events: Vec<Event> = victim.iter().map(|key| test.waits_in(key, "victim")).collect();
    events.extend((0..10).map(|at| test.waits_in(&key("g"), &format!("first {at}"))));
    test.apply(&events).await;
    let mut started = 0;
    for at in 0..80 {
        let next = test.waiting(NOW).await[0].clone();
        started += usize::from(victim.contains(&next));
        test.commit(&next, "x").await.unwrap();
        let events = [test.finished(&next, Some("x")), test.waits_in(&key("g"), &format!("next {at}"))];
        test.apply(&events).await;
    }
    assert_eq!(started, 5, "of 80 starts, of ten invocations at a time");
}

#[tokio::test]
async fn what_cost_less_than_was_thought_does_not_overtake_its_own_invocation() {
    let mut test = Test::start().await;
    let mut keys = test.accept(6).await;
    for key in keys.clone().iter().take(2) {
        test.commit(key, "x").await.unwrap();
        let events = [test.finished_beyond(key, "x", -900)];
        test.apply(&events).await;
    }
    keys.extend(test.accept(2).await);
    assert_eq!(test.waiting(NOW).await, keys[2..]);
}

#[tokio::test]
async fn the_place_of_an_execution_is_that_in_its_group() {
    let mut test = Test::start().await;
    let keys = test.accept(3).await;
    let queue = test.actions.queue(&RequirementsId::none(), [&pool()], Some(&keys[2]), NOW).await.unwrap();
    assert_eq!((queue.waiting, queue.place, queue.executor), (3, Some(2), None));
    test.commit(&keys[2], "x").await.unwrap();
    let queue = test.actions.queue(&RequirementsId::none(), [&pool()], Some(&keys[2]), NOW).await.unwrap();
    assert_eq!((queue.waiting, queue.place, queue.executor), (2, None, Some(id("x"))));
}

#[tokio::test]
async fn executions_with_other_requirements_wait_in_other_queues_of_one_order() {
    let mut test = Test::start().await;
    let keys = [key("g"), key("g"), key("g")];
    let gpu = Requirements::of([("gpu", "1")]);
    let events = [test.waits(&keys[0], 0), test.requires(&keys[1], &gpu), test.waits(&keys[2], -1)];
    test.apply(&events).await;
    let ids = [RequirementsId::none(), gpu.id()];
    let heads = test.actions.heads(NOW, 100, GRACE, &ids, &[pool()]).await.unwrap();
    let of = |at: usize| {
        heads.queues[at].groups[0].waiting.iter().map(|it| (&it.key, it.score)).collect::<Vec<_>>()
    };
    let (plain, special) = (of(0), of(1));
    assert_eq!([plain[0].0, plain[1].0, special[0].0], [&keys[2], &keys[0], &keys[1]]);
    // The scores are in the order of urgency and arrival, for all requirements.
    assert!(plain[0].1 < plain[1].1 && plain[1].1 < special[0].1);
    let mut backlog = test.actions.backlog().await.unwrap();
    backlog.sort_by_key(|it| it.requirements.clone());
    let group = || "g".parse().unwrap();
    let of = |requirements: Requirements, count| Backlog { requirements, groups: vec![(group(), count)] };
    assert_eq!(backlog, [of(Requirements::default(), 2), of(gpu.clone(), 1)]);
    test.commit(&keys[1], "x").await.unwrap();
    assert_eq!(test.actions.backlog().await.unwrap(), [of(Requirements::default(), 2)]);
}

#[tokio::test]
async fn fixed_places_go_in_their_order_and_equal_ones_by_age() {
    let mut test = Test::start().await;
    let keys = [key("g"), key("g"), key("g"), key("g")];
    let events = [
        test.waits_at(&keys[0], 9),
        test.waits_at(&keys[1], 3),
        test.waits_at(&keys[2], 3),
        test.waits(&keys[3], -1),
    ];
    test.apply(&events).await;
    assert_eq!(test.waiting(NOW).await, [3, 1, 2, 0].map(|at: usize| keys[at].clone()));
    // A change of its record leaves its place.
    let events = [test.raised(&keys[0], 0)];
    test.apply(&events).await;
    assert_eq!(test.waiting(NOW).await, [3, 1, 2, 0].map(|at: usize| keys[at].clone()));
}

#[tokio::test]
async fn the_place_counts_the_turns_of_other_groups_and_the_run_times_before_it() {
    let mut test = Test::start().await;
    let mine = test.accept(3).await;
    let mut events = Vec::new();
    for group in ["h", "h", "h", "h", "i"] {
        events.push(test.waits(&key(group), 0));
    }
    for event in &mut events {
        if let Change::Open(_, open) = &mut event.change {
            open.demand.expected_ms = 9000;
        }
    }
    test.apply(&events).await;
    let queue = test.actions.queue(&RequirementsId::none(), [&pool()], Some(&mine[1]), NOW).await.unwrap();
    assert_eq!((queue.place, queue.others), (Some(1), 3), "two of h, and the one of i");
    assert_eq!(queue.mean, Duration::ZERO);
    let last = &events[3].key;
    let queue = test.actions.queue(&RequirementsId::none(), [&pool()], Some(last), NOW).await.unwrap();
    assert_eq!((queue.place, queue.others, queue.mean), (Some(3), 4, Duration::from_secs(9)));
}
