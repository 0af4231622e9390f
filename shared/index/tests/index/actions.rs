//! The index of actions on a real Redis: waiting executions, grants, copies and use.

use std::time::Duration;

use crate::support::{GRACE, LATER, NOW, Test, grant_of, heartbeat, id, key, pool};
use index::{
    Applied,
    actions::{Committed, Due, Effects, Event, Grant, GroupUse, Heads, StaleClaim},
};
use model::{GrantNotice, Grants, PoolName, RequirementsId, Resources, Sequence, Urgency};

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
