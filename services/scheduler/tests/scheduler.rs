//! The scheduler against a real nats-server and Redis, with executors that the test plays.

mod fake;

use std::time::Duration;

use bus::Written;
use fake::{FakeExecutor, Manner, Test, outcome};
use model::{ExecutionPhase, ExecutorStatus, Sequence};

const PATIENCE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn accepted_executions_are_run_once_each_by_two_schedulers_and_two_executors() {
    let test = Test::start().await;
    let _one = test.scheduler().await;
    let _two = test.scheduler().await;
    let a = FakeExecutor::start(&test, "a", 4, Manner::Finish).await;
    let b = FakeExecutor::start(&test, "b", 4, Manner::Finish).await;
    let keys = test.accept(500).await;
    let ends = test.all_finished(&keys).await;
    assert!(ends.values().all(|end| end.code == 0));
    assert_eq!(a.taken() + b.taken(), 500, "none was started twice");
    assert!(a.taken() > 100 && b.taken() > 100, "both had their share: {} and {}", a.taken(), b.taken());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_most_urgent_runs_first() {
    let test = Test::start().await;
    let mut keys = Vec::new();
    for priority in [5, 0, -5, 0] {
        keys.push(test.accept_with(|execution| execution.priority = priority).await);
    }
    let _scheduler = test.scheduler().await;
    let executor = FakeExecutor::start(&test, "a", 1, Manner::Finish).await;
    test.all_finished(&keys).await;
    let order = [2, 1, 3, 0].map(|at: usize| keys[at].clone());
    assert_eq!(executor.history(), order);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_dies_is_replaced_by_another() {
    let test = Test::start().await;
    let first = test.scheduler().await;
    let _executor = FakeExecutor::start(&test, "a", 2, Manner::Finish).await;
    let mut keys = test.accept(200).await;
    first.kill();
    keys.extend(test.accept(200).await);
    let _second = test.scheduler().await;
    let ends = test.all_finished(&keys).await;
    assert!(ends.values().all(|end| end.code == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_redis_forgets_with_many_waiting_and_some_running() {
    let test = Test::start().await;
    let _one = test.scheduler().await;
    let _two = test.scheduler().await;
    let executor = FakeExecutor::start(&test, "a", 4, Manner::Hold).await;
    let keys = test.accept(500).await;
    test.until(|| executor.held() == 4).await;
    test.servers.flush_redis();
    test.until_queue(|queue| queue.ready && queue.running == 4 && queue.waiting == 496).await;
    executor.set_manner(Manner::Finish);
    executor.finish_held().await;
    let ends = test.all_finished(&keys).await;
    assert!(ends.values().all(|end| end.code == 0));
    assert_eq!(executor.taken(), 500, "what ran was not started again");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_redis_dies_and_comes_back() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let _executor = FakeExecutor::start(&test, "a", 2, Manner::Finish).await;
    let mut keys = test.accept(100).await;
    test.servers.kill_redis();
    keys.extend(test.accept(100).await);
    test.servers.start_redis().await;
    test.all_finished(&keys).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_nats_restarts() {
    let test = Test::start().await;
    let _one = test.scheduler().await;
    let _two = test.scheduler().await;
    let _executor = FakeExecutor::start(&test, "a", 2, Manner::Finish).await;
    let mut keys = test.accept(300).await;
    test.servers.kill_nats();
    test.servers.start_nats().await;
    keys.extend(test.accept(100).await);
    test.all_finished(&keys).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_executor_had_runs_elsewhere() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let dying = FakeExecutor::start(&test, "dying", 2, Manner::Hold).await;
    let keys = test.accept(2).await;
    test.until(|| dying.held() == 2).await;
    dying.kill();
    let other = FakeExecutor::start(&test, "other", 2, Manner::Hold).await;
    test.until(|| other.held() == 2).await;
    for key in &keys {
        let (_, record) = test.bus.latest_execution(key).await.unwrap().unwrap();
        let ExecutionPhase::Requeued { reason } = &record.phase else { panic!("{record:?}") };
        assert_eq!(reason, "executor dying on machine was lost");
        assert_eq!(record.attempt.0, 2);
        assert!(record.place > Sequence(0));
    }
    other.finish_held().await;
    test.all_finished(&keys).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_executor_is_found_when_redis_was_forgotten_and_no_scheduler_listened() {
    let test = Test::start().await;
    let first = test.scheduler().await;
    let dying = FakeExecutor::start(&test, "dying", 2, Manner::Hold).await;
    let keys = test.accept(2).await;
    test.until(|| dying.held() == 2).await;
    first.kill();
    dying.kill();
    test.lease_ended(dying.id()).await;
    test.servers.flush_redis();
    let _second = test.scheduler().await;
    let other = FakeExecutor::start(&test, "other", 2, Manner::Finish).await;
    test.all_finished(&keys).await;
    assert_eq!(other.taken(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_that_loses_its_executors_is_given_up() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let key = test.accept_with(|execution| execution.max_attempts = model::Attempt(2)).await;
    for name in ["first", "second"] {
        let dying = FakeExecutor::start(&test, name, 1, Manner::Hold).await;
        test.until(|| dying.held() == 1).await;
        dying.release().await;
    }
    let ends = test.all_finished(std::slice::from_ref(&key)).await;
    let end = &ends[&key];
    assert_eq!(end.code, 14);
    let message = "given up after 2 attempts; the last one: executor second on machine was lost";
    assert_eq!(end.message, message);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_comes_with_the_loss_of_its_executor_is_the_only_one() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let slow = FakeExecutor::start(&test, "slow", 1, Manner::Hold).await;
    let key = test.accept(1).await.remove(0);
    test.until(|| slow.held() == 1).await;
    let (sequence, record) = slow.holding().remove(0);
    let result = record.finished(sequence, outcome(Some("slow")), model::Millis::now());
    let (written, ()) = tokio::join!(test.bus.transition(&result, sequence, PATIENCE), slow.release());
    let other = FakeExecutor::start(&test, "other", 1, Manner::Finish).await;
    test.all_finished(std::slice::from_ref(&key)).await;
    let won = matches!(written.unwrap(), Written::Won(_));
    assert_eq!(other.taken(), usize::from(!won), "either the result counted or it ran again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_executor_is_left_alone_until_it_has_room() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let busy = FakeExecutor::start(&test, "busy", 2, Manner::Busy).await;
    let keys = test.accept(20).await;
    test.until(|| busy.refused() > 0).await;
    let idle = FakeExecutor::start(&test, "idle", 2, Manner::Finish).await;
    test.all_finished(&keys).await;
    assert_eq!((busy.taken(), idle.taken()), (0, 20));
    assert!(busy.refused() < 60, "it was asked {} times", busy.refused());
    busy.set_manner(Manner::Finish);
    busy.heartbeat(ExecutorStatus::Ready).await;
    idle.kill();
    let keys = test.accept(2).await;
    test.all_finished(&keys).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offer_that_is_not_answered_is_made_elsewhere() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let deaf = FakeExecutor::start(&test, "deaf", 2, Manner::Deaf).await;
    let keys = test.accept(2).await;
    test.until(|| deaf.refused() == 2).await;
    let good = FakeExecutor::start(&test, "good", 2, Manner::Finish).await;
    deaf.set_manner(Manner::Finish);
    test.all_finished(&keys).await;
    assert_eq!(good.taken() + deaf.taken(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_leaves_gives_back_what_it_has() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let leaving = FakeExecutor::start(&test, "leaving", 2, Manner::Hold).await;
    let keys = test.accept(2).await;
    test.until(|| leaving.held() == 2).await;
    leaving.heartbeat(ExecutorStatus::Gone).await;
    let other = FakeExecutor::start(&test, "other", 2, Manner::Finish).await;
    let ends = test.all_finished(&keys).await;
    assert_eq!((ends.len(), other.taken()), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_runs_a_cancelled_execution_is_told() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let executor = FakeExecutor::start(&test, "a", 1, Manner::Hold).await;
    let key = test.accept(1).await.remove(0);
    test.until(|| executor.held() == 1).await;
    let cancelled = test.finish(&key, model::ExecutionOutcome { code: 1, ..outcome(None) }).await;
    assert!(matches!(cancelled, Written::Won(_)));
    test.until(|| executor.cancelled() == vec![key.clone()]).await;
    // And when the order was lost: by the next heartbeat that still names it.
    executor.heartbeat(ExecutorStatus::Ready).await;
    test.until(|| executor.cancelled().len() >= 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_too_long_is_ended_with_the_reason() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let soon = |execution: &mut model::Execution| {
        execution.expires_at_ms = execution.accepted_at_ms.after(Duration::from_millis(300));
    };
    let key = test.accept_with(soon).await;
    let ends = test.all_finished(std::slice::from_ref(&key)).await;
    let end = &ends[&key];
    assert_eq!((end.code, end.message.as_str()), (14, "waited 0 s: pool default has no executor"));
    let full = FakeExecutor::start(&test, "full", 1, Manner::Hold).await;
    test.accept(1).await;
    test.until(|| full.held() == 1).await;
    let key = test.accept_with(soon).await;
    let ends = test.all_finished(std::slice::from_ref(&key)).await;
    let message = &ends[&key].message;
    assert_eq!(message, "waited 0 s: the one executor of pool default is full: 1 run, 1 wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_and_waiting_are_told_apart_by_a_rebuild_from_the_floor() {
    let test = Test::start().await;
    let scheduler = test.scheduler().await;
    let executor = FakeExecutor::start(&test, "a", 8, Manner::Finish).await;
    let mut keys = test.accept(1000).await;
    test.all_finished(&keys).await;
    executor.set_manner(Manner::Hold);
    let floor = test.actions.floor().await.unwrap().unwrap();
    assert!(floor >= Sequence(1500));
    test.bus.set_setting(bus::SettingKey::ActionsFloor, &floor.to_string()).await.unwrap();
    keys = test.accept(20).await;
    test.until(|| executor.held() == 8).await;
    scheduler.kill();
    test.servers.flush_redis();
    let _again = test.scheduler().await;
    test.until_queue(|queue| queue.ready && queue.waiting == 12 && queue.running == 8).await;
    executor.set_manner(Manner::Finish);
    executor.finish_held().await;
    test.all_finished(&keys).await;
    assert_eq!(executor.taken(), 1020);
}

/// `cargo nextest run -p scheduler --run-ignored only --no-capture`: what the scheduler costs, with executors that do nothing.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn figures() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let executor = FakeExecutor::start(&test, "a", 16, Manner::Hold).await;
    let keys = test.accept(20_000).await;
    let before = test.redis_seconds();
    let begun = std::time::Instant::now();
    executor.set_manner(Manner::Finish);
    executor.finish_held().await;
    test.all_finished(&keys).await;
    let (spent, redis) = (begun.elapsed().as_secs_f64(), test.redis_seconds() - before);
    let rate = 20_000.0 / spent;
    eprintln!("20000 queued, 16 slots: {rate:.0}/s, {:.1} us of redis each", redis * 50.0);
    let begun = std::time::Instant::now();
    for _ in 0..1000 {
        let key = test.accept(1).await;
        test.latest_finished(&key[0]).await;
    }
    eprintln!("one at a time: {:.2} ms each", begun.elapsed().as_secs_f64());
    test.servers.flush_redis();
    let begun = std::time::Instant::now();
    test.until_queue(|queue| !queue.ready).await;
    test.until_queue(|queue| queue.ready).await;
    eprintln!("rebuild with 21000 finished: {:?} after the flush", begun.elapsed());
}
