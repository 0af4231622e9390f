//! The index of actions on a real Redis: waiting executions, claims, heartbeats, losses and rebuilds.

use std::time::Duration;

use crate::support::{GRACE, LATER, NOW, Test, grant_of, heartbeat, id, key, pool};
use index::{
    Applied,
    actions::{Backlog, Change, Committed, Due, Effects, Event, Grant, GroupUse, Heads, StaleClaim},
};
use model::{
    ExecutionKey, ExecutorHeartbeat, ExecutorStatus, GrantNotice, Grants, PoolName, Priority, Requirements,
    RequirementsId, Resources, Sequence, Urgency,
};

/// The use of the only pool by the only group.
fn only_use(heads: &Heads) -> &GroupUse {
    &heads.uses[&pool()][0]
}

#[tokio::test]
async fn executions_are_handed_out_by_priority_then_age_with_their_record() {
    let mut test = Test::start().await;
    let (old, young, urgent) = (key("g"), key("g"), key("g"));
    let events = [test.waits(&old, 0), test.waits(&young, 0), test.waits(&urgent, -1)];
    assert!(test.apply(&events).await.applied_here);
    assert_eq!(test.waiting(NOW).await, [urgent.clone(), old, young]);
    let committed = test.commit(&urgent, "x").await.unwrap();
    assert_eq!(committed, (1, Sequence(3), format!("record {urgent}")));
    let heads = test.heads(NOW).await;
    assert_eq!((heads.waiting, heads.claimed), (2, 1));
    assert!((only_use(&heads).held - 1.0).abs() < 1e-6);
    assert_eq!(heads.queues[0].groups[0].waiting[0].demand, Test::demand(Urgency::default()));
}

#[tokio::test]
async fn two_schedulers_never_give_one_execution_twice() {
    let mut test = Test::start().await;
    let keys = test.accept(20).await;
    let one = async |executor| {
        let mut won = 0;
        for key in &keys {
            won += usize::from(test.commit(key, executor).await.is_some());
        }
        won
    };
    let (a, b) = tokio::join!(one("x"), one("y"));
    assert_eq!(a + b, 20);
    assert_eq!(test.counts().await, (0, 20));
}

#[tokio::test]
async fn a_grant_to_an_executor_that_another_scheduler_filled_is_refused() {
    let mut test = Test::start().await;
    let keys = test.accept(4).await;
    let grant = async |at: usize, executor, after| test.grant_after(&keys[at], executor, after).await;
    let number = |committed| match committed {
        Committed::Granted { number, .. } => number,
        Committed::NotGranted | Committed::Full | Committed::Outdated { .. } => panic!("{committed:?}"),
    };
    // The first grant may have any number, and later ones may leave numbers out: the executor is older than the index.
    assert_eq!(number(grant(0, "x", 7).await), 8);
    assert_eq!(grant(1, "x", 7).await, Committed::Outdated { number: 8, missed: Vec::new() });
    assert_eq!(grant(0, "x", 8).await, Committed::NotGranted);
    assert_eq!(number(grant(1, "x", 8).await), 9);
    assert_eq!(number(grant(2, "y", 0).await), 1);
    assert_eq!(number(grant(3, "y", 5).await), 6);
    assert_eq!(test.counts().await, (0, 4));
}

#[tokio::test]
async fn new_executions_are_granted_by_the_call_that_applies_them() {
    let mut test = Test::start().await;
    let (first, second, third) = (key("g"), key("g"), key("g"));
    let events = [test.waits(&first, 0), test.waits(&second, 0), test.waits(&third, 0)];
    let grants = [grant_of(&first, "x", 0), grant_of(&third, "x", 0)];
    let granted = test.apply_granting(&events, &grants).await.granted;
    let claimed = |number, sequence, key| Committed::Granted {
        number,
        sequence: Sequence(sequence),
        record: format!("record {key}"),
    };
    assert_eq!(granted, [claimed(1, 1, &first), claimed(2, 3, &third)]);
    assert_eq!(test.waiting(NOW).await, [second]);
    assert_eq!(test.counts().await, (1, 2));
    // What a full executor would get waits, and starts elsewhere.
    let of_full = |key| Grant { claims_max: 2, ..grant_of(key, "x", 2) };
    let refused = key("g");
    let events = [test.waits(&refused, 0)];
    assert_eq!(test.apply_granting(&events, &[of_full(&refused)]).await.granted, [Committed::Full]);
    assert_eq!(test.actions.commit(&[of_full(&refused)], NOW).await.unwrap(), [Committed::Full]);
    let elsewhere = Grant { executor: id("y"), after: 0, ..of_full(&refused) };
    let granted = test.actions.commit(&[elsewhere], NOW).await.unwrap();
    assert!(matches!(granted[0], Committed::Granted { number: 1, .. }), "{granted:?}");
    let events = [test.finished(&refused, Some("y"))];
    test.apply(&events).await;
    // Another scheduler has granted two: what it does not know of waits.
    let fourth = key("g");
    let events = [test.waits(&fourth, 0)];
    let granted = test.apply_granting(&events, &[grant_of(&fourth, "x", 1)]).await.granted;
    assert_eq!(granted, [Committed::Outdated { number: 2, missed: Vec::new() }]);
    assert_eq!(test.counts().await, (2, 2));
    let events = [test.finished(&first, Some("x")), test.finished(&third, Some("x"))];
    test.apply(&events).await;
    assert_eq!(test.counts().await, (2, 0));
}

#[tokio::test]
async fn a_grant_that_is_not_confirmed_comes_into_doubt() {
    let mut test = Test::start().await;
    let keys = test.accept(2).await;
    test.announce(&heartbeat("x", &[])).await;
    test.commit(&keys[0], "x").await.unwrap();
    test.commit(&keys[1], "x").await.unwrap();
    test.announce(&heartbeat("x", &keys[1..])).await;
    let late = NOW.after(Grants::IN_FLIGHT_MAX);
    assert_eq!(test.heads(late).await.silent.len(), 1);
    // It does not confirm the first one in time.
    assert_eq!(test.waiting(late.after(GRACE)).await, keys[..1]);
}

#[tokio::test]
async fn an_end_tells_whom_it_passed_by() {
    let mut test = Test::start().await;
    let keys = test.accept(2).await;
    test.commit(&keys[0], "x").await.unwrap();
    test.commit(&keys[1], "x").await.unwrap();
    let events = [test.finished(&keys[0], Some("x")), test.finished(&keys[1], None)];
    let effects = test.apply(&events).await;
    assert_eq!(effects.astray, [StaleClaim { key: keys[1].clone(), executor: id("x") }]);
    assert_eq!(test.counts().await, (0, 0));
    // Each event counts once, even if it is applied again.
    let all: Vec<&Event> = events.iter().collect();
    let again = test.actions.apply(Sequence(2), Sequence(4), &all, &[], NOW).await.unwrap();
    assert_eq!(again, Applied::Done(Effects::default()));
    let ahead = test.actions.apply(Sequence(99), Sequence(100), &[], &[], NOW).await.unwrap();
    assert_eq!(ahead, Applied::Gap(Sequence(test.last)));
    // An executor that still holds it learns that at its next heartbeat.
    assert_eq!(test.announce(&heartbeat("x", &keys)).await.dead, keys);
}

#[tokio::test]
async fn one_copy_more_waits_beside_the_one_that_runs_and_all_end_together() {
    let mut test = Test::start().await;
    let one = test.accept(1).await.remove(0);
    test.commit_hedged(&one, "x", NOW.after(GRACE)).await.unwrap();
    assert_eq!(test.heads(NOW).await.next_hedge, Some(NOW.after(GRACE)));
    let due = test.actions.due(Due::Hedge, NOW.after(GRACE), LATER, 10).await.unwrap();
    assert_eq!(due[0].key, one);
    let events = [test.hedged(&one)];
    test.apply(&events).await;
    let heads = test.heads(NOW).await;
    assert_eq!((heads.waiting, heads.next_hedge), (1, None));
    assert_eq!(heads.queues[0].groups[0].waiting[0].holders, [id("x")]);
    assert_eq!(test.commit(&one, "x").await, None, "it holds a copy");
    test.commit(&one, "y").await.unwrap();
    assert_eq!(test.counts().await, (0, 2));
    assert!((test.held().await - 2.0).abs() < 1e-6);
    let events = [test.finished(&one, Some("y"))];
    assert_eq!(test.apply(&events).await.astray, [StaleClaim { key: one, executor: id("x") }]);
    assert_eq!(test.counts().await, (0, 0));
}

#[tokio::test]
async fn what_runs_is_never_overdue_because_a_copy_of_it_waits() {
    let mut test = Test::start().await;
    let one = test.accept(1).await.remove(0);
    test.commit(&one, "x").await.unwrap();
    let events = [test.hedged(&one)];
    test.apply(&events).await;
    let overdue = || test.actions.due(Due::Expiry, LATER, LATER.after(GRACE), 10);
    assert_eq!(overdue().await.unwrap(), []);
    assert_eq!(test.heads(NOW).await.waiting, 1);
    // Once the running copy is lost, the waiting copy is the only one left.
    let events = [test.copy_ended(&one, "x")];
    test.apply(&events).await;
    let overdue = test.actions.due(Due::Expiry, LATER, LATER.after(GRACE), 10).await.unwrap();
    assert_eq!(overdue[0].key, one);
}

#[tokio::test]
async fn a_copy_that_ended_leaves_the_others_alone() {
    let mut test = Test::start().await;
    let one = test.accept(1).await.remove(0);
    test.commit(&one, "x").await.unwrap();
    let events = [test.hedged(&one)];
    test.apply(&events).await;
    test.commit(&one, "y").await.unwrap();
    let events = [test.copy_ended(&one, "x")];
    assert_eq!(
        test.apply(&events).await,
        Effects { applied_here: true, was_first: true, ..Effects::default() }
    );
    assert_eq!(test.counts().await, (0, 1));
    let events = [test.finished(&one, Some("y"))];
    assert_eq!(test.apply(&events).await.astray, []);
}

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
async fn what_groups_used_counts_less_the_longer_ago_it_is() {
    let mut test = Test::start().await;
    let keys = test.accept(2).await;
    test.commit(&keys[0], "x").await.unwrap();
    let after = NOW.after(Duration::from_secs(60));
    let used = only_use(&test.heads(after).await).used;
    // One ESU for a minute: the script computes the same as the policy.
    let minute = Duration::from_secs(60);
    let lasting = policy::actions::accrue(0.0, 1.0, minute);
    assert!((used - lasting).abs() < 0.01, "{used}");
    let events = [test.finished(&keys[0], Some("x"))];
    test.apply_at(&events, after).await;
    let head = test.heads(after.after(Duration::from_secs(60))).await;
    let group = only_use(&head);
    let left = policy::actions::accrue(lasting, 0.0, minute);
    assert!((group.used - left).abs() < 0.01 && group.held < 1e-6, "{group:?}");
}

#[tokio::test]
async fn an_executor_that_goes_away_gives_back_what_it_has() {
    let mut test = Test::start().await;
    let keys = test.accept(2).await;
    test.announce(&heartbeat("y", &[])).await;
    test.commit(&keys[0], "y").await.unwrap();
    let given = test.actions.give_back(&id("y"), &keys, NOW).await.unwrap();
    assert_eq!(given, [RequirementsId::none()]);
    test.commit(&keys[0], "y").await.unwrap();
    let gone = ExecutorHeartbeat { status: ExecutorStatus::Gone, ..heartbeat("y", &[]) };
    assert_eq!(test.announce(&gone).await.again, [RequirementsId::none()]);
    assert_eq!(test.counts().await, (2, 0));
    // An executor without heartbeats is also removed.
    test.announce(&heartbeat("z", &[])).await;
    test.heads(LATER).await;
    assert_eq!(test.actions.executors(NOW).await.unwrap().len(), 0);
}

#[tokio::test]
async fn a_claim_that_its_executor_does_not_know_of_comes_back() {
    let mut test = Test::start().await;
    let keys = test.accept(2).await;
    test.commit(&keys[0], "x").await.unwrap();
    test.commit(&keys[1], "x").await.unwrap();
    // Missing in one heartbeat: the claim may be on its way there, or its end on its way here.
    assert_eq!(test.announce(&heartbeat("x", &keys[..1])).await.again, []);
    assert_eq!(test.counts().await, (0, 2));
    let late = NOW.after(GRACE);
    let heads = test.heads(late).await;
    assert_eq!((heads.silent.len(), heads.waiting, heads.claimed), (1, 0, 2), "the executor is asked first");
    assert_eq!(heads.next_doubt, Some(late.after(GRACE)));
    assert_eq!(test.announce(&heartbeat("x", &keys[..1])).await.again, [RequirementsId::none()]);
    assert_eq!(test.counts().await, (1, 1));
    // An execution that the executor names stays its own, however much later.
    assert_eq!(test.heads(LATER).await.claimed, 1);
}

#[tokio::test]
async fn a_claim_in_doubt_of_an_executor_that_hangs_comes_back() {
    let mut test = Test::start().await;
    let keys = test.accept(1).await;
    test.commit(&keys[0], "x").await.unwrap();
    test.announce(&heartbeat("x", &[])).await;
    assert_eq!(test.heads(NOW.after(GRACE)).await.silent.len(), 1);
    let heads = test.heads(NOW.after(GRACE * 3)).await;
    assert_eq!((heads.waiting, heads.claimed), (1, 0));
}

#[tokio::test]
async fn whoever_runs_it_has_it_whatever_the_index_thought() {
    let mut test = Test::start().await;
    let keys = test.accept(2).await;
    test.announce(&heartbeat("x", &keys[..1])).await;
    assert_eq!(test.counts().await, (1, 1));
    test.commit(&keys[1], "x").await.unwrap();
    test.announce(&heartbeat("y", &keys[1..])).await;
    let events = [test.finished(&keys[1], Some("y"))];
    assert_eq!(test.apply(&events).await.astray, [StaleClaim { key: keys[1].clone(), executor: id("x") }]);
}

#[tokio::test]
async fn a_lost_executor_leaves_its_claims_until_what_follows_is_applied() {
    let mut test = Test::start().await;
    let keys = test.accept(3).await;
    test.announce(&heartbeat("x", &[])).await;
    test.commit(&keys[0], "x").await.unwrap();
    test.commit(&keys[1], "x").await.unwrap();
    assert_eq!(test.actions.holders().await.unwrap(), [id("x")]);
    let lost = test.actions.lost(&id("x")).await.unwrap();
    assert_eq!((lost.host.as_deref(), lost.executions.len()), (Some("machine"), 2));
    let again = test.actions.lost(&id("x")).await.unwrap();
    assert_eq!((again.host, again.executions.len()), (None, 2), "a repeated call returns the same");
    assert_eq!(test.counts().await, (1, 2));
    let events: Vec<Event> = lost.executions.iter().map(|it| test.waits(&it.key, 0)).collect();
    assert_eq!(test.apply(&events).await.astray, []);
    assert_eq!(test.counts().await, (3, 0));
    assert_eq!(test.actions.holders().await.unwrap(), []);
}

#[tokio::test]
async fn a_forgotten_index_is_rebuilt_around_what_runs() {
    let mut test = Test::start().await;
    let keys: Vec<ExecutionKey> = (0..3).map(|_| key("g")).collect();
    let mut events: Vec<Event> = keys.iter().map(|key| test.waits(key, 0)).collect();
    events.push(test.finished(&keys[2], Some("x")));
    test.servers.flush_redis();
    assert_eq!(test.actions.health().await.unwrap(), None);
    let all: Vec<&Event> = events.iter().collect();
    assert_eq!(test.actions.apply(Sequence(0), Sequence(4), &all, &[], NOW).await.unwrap(), Applied::Empty);
    assert!(!test.heads(NOW).await.ready);
    // One executor sends a heartbeat before the index exists, which registers only its liveness.
    assert!(!test.announce(&heartbeat("x", &keys[..1])).await.ready);
    test.rebuild(&events, &[id("x"), id("y")]).await;
    let heads = test.heads(NOW).await;
    assert_eq!((heads.ready, heads.waiting, heads.queues.len()), (true, 2, 0));
    assert_eq!(heads.hold, Some(NOW.after(Duration::from_millis(500))));
    assert_eq!(heads.next_overdue, Some(LATER));
    assert_eq!(test.commit(&keys[0], "x").await, None, "nothing is granted during the hold");
    test.announce(&heartbeat("x", &keys[..1])).await;
    assert_eq!(test.counts().await, (1, 1));
    assert!(test.heads(NOW).await.hold.is_some(), "the other executor is still awaited");
    test.announce(&heartbeat("y", &[])).await;
    assert_eq!(test.heads(NOW).await.hold, None);
    assert_eq!(test.waiting(NOW).await, [keys[1].clone()]);
}

#[tokio::test]
async fn a_rebuild_waits_for_the_silent_only_so_long() {
    let mut test = Test::start().await;
    let one = key("g");
    let events = [test.waits(&one, 0)];
    test.rebuild(&events, &[id("dead"), id("x")]).await;
    test.announce(&heartbeat("x", &[])).await;
    assert!(test.heads(NOW).await.queues.is_empty());
    let after = NOW.after(Duration::from_millis(500));
    assert_eq!(test.waiting(after).await, [one]);
    // Nothing is overdue until it is certain that it does not run.
    let overdue = |now| test.actions.due(Due::Expiry, now, LATER.after(GRACE), 10);
    assert_eq!(overdue(after).await.unwrap().len(), 0);
    assert_eq!(overdue(LATER).await.unwrap().len(), 1);
    assert_eq!(overdue(LATER).await.unwrap().len(), 0, "returned once");
    assert_eq!(overdue(LATER.after(GRACE)).await.unwrap().len(), 1, "and again if it is still due");
    // A lost executor is no longer awaited.
    test.rebuild(&events, &[id("dead")]).await;
    assert!(test.heads(NOW).await.hold.is_some());
    test.actions.lost(&id("dead")).await.unwrap();
    assert!(test.heads(NOW).await.hold.is_none());
}

#[tokio::test]
async fn a_rebuild_need_not_read_what_is_finished() {
    let mut test = Test::start().await;
    assert_eq!(test.actions.floor().await.unwrap(), Some(Sequence(0)));
    let keys = test.accept(3).await;
    assert_eq!(test.actions.floor().await.unwrap(), Some(Sequence(0)));
    let end = test.finished(&keys[0], None);
    test.last = 5000;
    let events = [end, test.waits(&keys[1], 0)];
    test.apply(&events).await;
    assert_eq!(test.actions.floor().await.unwrap(), Some(Sequence(0)), "the third waits since the start");
    let events = [test.finished(&keys[2], None)];
    test.apply(&events).await;
    // Positions are known to 1024.
    assert_eq!(test.actions.floor().await.unwrap(), Some(Sequence(4 * 1024 - 1)));
    let events = [test.finished(&keys[1], None)];
    test.apply(&events).await;
    assert_eq!(test.actions.floor().await.unwrap(), Some(Sequence(5003)));
    test.servers.flush_redis();
    assert_eq!(test.actions.floor().await.unwrap(), None);
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
async fn use_counts_for_the_pool_of_the_executor_that_holds_it() {
    let mut test = Test::start().await;
    let keys = test.accept(3).await;
    test.commit(&keys[0], "x").await.unwrap();
    let other: PoolName = "other".parse().unwrap();
    let grant = Grant { pool: other.clone(), cost: 3000, ..grant_of(&keys[1], "y", 0) };
    assert!(matches!(test.actions.commit(&[grant], NOW).await.unwrap()[0], Committed::Granted { .. }));
    let pools = [pool(), other.clone()];
    let held = async |test: &Test| {
        let heads = test.actions.heads(NOW, 100, GRACE, &[RequirementsId::none()], &pools).await.unwrap();
        [&pools[0], &pools[1]].map(|pool| format!("{:.1}", heads.uses[pool][0].held))
    };
    assert_eq!(held(&test).await, ["1.0", "3.0"]);
    assert_eq!(test.actions.running(&other).await.unwrap(), 1);
    let events = [test.finished(&keys[1], Some("y"))];
    test.apply(&events).await;
    assert_eq!(held(&test).await, ["1.0", "0.0"]);
    assert_eq!(test.actions.running(&other).await.unwrap(), 0);
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

#[tokio::test]
async fn a_refused_grant_says_what_was_granted_meanwhile() {
    let mut test = Test::start().await;
    let keys = test.accept(20).await;
    let notice = |number: u64, starts: u16| GrantNotice {
        executor: id("x"),
        number,
        size: Resources::new(1000, u64::from(starts)),
        starts,
        ahead: 0,
    };
    let grant = |at: usize, after: u64| Grant {
        // The index gives it its number.
        notice: Some(notice(0, u16::try_from(at).unwrap() + 1)),
        ..grant_of(&keys[at], "x", after)
    };
    let granted = test.actions.commit(&[grant(0, 0), grant(1, 0)], NOW).await.unwrap();
    assert!(granted.iter().all(|it| matches!(it, Committed::Granted { .. })), "{granted:?}");
    let refused = test.actions.commit(&[grant(2, 0), grant(2, 1)], NOW).await.unwrap();
    // The first one of a call decides which grants the caller knows.
    let missed = vec![notice(1, 1), notice(2, 2)];
    assert_eq!(refused[0], Committed::Outdated { number: 2, missed });
    let event = test.waits(&key("g"), 0);
    let key = event.key.clone();
    let late = Grant { key, ..grant(3, 1) };
    let refused = test.apply_granting(&[event], &[late]).await.granted;
    assert_eq!(refused, [Committed::Outdated { number: 2, missed: vec![notice(2, 2)] }]);
    // Only the last ones are kept.
    for at in 2..20 {
        let after = at as u64;
        assert!(matches!(
            test.actions.commit(&[grant(at, after)], NOW).await.unwrap()[0],
            Committed::Granted { .. }
        ));
    }
    let refused = test.actions.commit(&[grant(0, 2)], NOW).await.unwrap();
    assert_eq!(refused, [Committed::Outdated { number: 20, missed: Vec::new() }]);
}
