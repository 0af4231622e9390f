//! What runs when executors, claims or the index itself are lost.

use std::time::Duration;

use crate::support::{GRACE, LATER, NOW, Test, heartbeat, id, key};
use index::{
    Applied,
    actions::{Due, Event, StaleClaim},
};
use model::{ExecutionKey, ExecutorHeartbeat, ExecutorStatus, RequirementsId, Sequence};

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
