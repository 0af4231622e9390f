//! Tests the scheduler against a real nats-server and Redis, with executors that the test plays.

mod fake;

use std::time::Duration;

use bus::Written;
use fake::{FakeExecutor, Manner, Test, outcome};
use model::{ExecutionOutcome, ExecutionPhase, ExecutorStatus, Requirements, Resources, Sequence};

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
        let (_, record) = test.bus.records().latest(key).await.unwrap().unwrap();
        let ExecutionPhase::Requeued { reason, .. } = &record.phase else { panic!("{record:?}") };
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
    let result = record.finished(sequence, outcome(Some("slow")), model::Millis::of_this_machine());
    let (written, ()) = tokio::join!(test.bus.transition(&result, sequence, PATIENCE), slow.release());
    let other = FakeExecutor::start(&test, "other", 1, Manner::Finish).await;
    test.all_finished(std::slice::from_ref(&key)).await;
    let won = matches!(written.unwrap(), Written::Won(_));
    assert_eq!(other.taken(), usize::from(!won), "either the result counted or it ran again");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_hangs_keeps_nothing_from_the_others() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let deaf = FakeExecutor::start(&test, "deaf", 2, Manner::Deaf).await;
    let good = FakeExecutor::start(&test, "good", 2, Manner::Finish).await;
    let keys = test.accept(20).await;
    test.all_finished(&keys).await;
    assert_eq!((deaf.taken(), good.taken()), (0, 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_lies_about_its_room_gets_a_limited_number() {
    let test = Test::start().await;
    let _schedulers = [test.scheduler().await, test.scheduler().await];
    let liar = FakeExecutor::start(&test, "liar", 2, Manner::Lying).await;
    let keys = test.accept(300).await;
    let most = usize::try_from(policy::actions::claims_max(2)).unwrap();
    test.until(|| liar.held() == most).await;
    let honest = FakeExecutor::start(&test, "honest", 2, Manner::Finish).await;
    test.until(|| honest.taken() == keys.len() - most).await;
    assert_eq!(liar.held(), most);
    liar.release().await;
    test.all_finished(&keys).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_grant_starts_as_many_as_fit() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let executor = FakeExecutor::start(&test, "a", 8, Manner::Hold).await;
    let large = test.accept_with(|it| it.needs.cpu_millis = Some(8000)).await;
    test.until(|| executor.held() == 1).await;
    test.accept(8).await;
    test.until_queue(|queue| queue.waiting == 8).await;
    assert_eq!(executor.history(), [large]);
    executor.finish_held().await;
    test.until(|| executor.held() == 8).await;
    assert_eq!(executor.answers().last(), Some(&8), "{:?}", executor.answers());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_joins_is_full_by_its_first_grant() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    test.accept(2000).await;
    test.until_queue(|queue| queue.waiting == 2000).await;
    let executor = FakeExecutor::start(&test, "a", 16, Manner::Hold).await;
    test.until(|| executor.held() == 16).await;
    assert_eq!(executor.answers(), [16]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_is_waited_for_while_others_flow() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let gpu = |count: u32| {
        std::collections::BTreeMap::from([("gpu".parse().unwrap(), model::Amount::whole(count))])
    };
    let has = Resources { custom: gpu(1), ..Resources::default() };
    let executor = FakeExecutor::start_with(&test, "a", 4, has, Manner::Hold).await;
    let first = test.accept_with(|it| it.needs.custom = gpu(1)).await;
    test.until(|| executor.held() == 1).await;
    let second = test.accept_with(|it| it.needs.custom = gpu(1)).await;
    let others = test.accept(3).await;
    test.until(|| executor.held() == 4).await;
    assert!(!executor.history().contains(&second));
    executor.finish_held().await;
    test.until(|| executor.history().contains(&second)).await;
    executor.finish_held().await;
    test.all_finished(&[vec![first, second], others].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn however_many_wait_for_a_gpu_others_flow() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let gpu = std::collections::BTreeMap::from([("gpu".parse().unwrap(), model::Amount::whole(1))]);
    let has = Resources { custom: gpu.clone(), ..Resources::default() };
    let executor = FakeExecutor::start_with(&test, "a", 2, has, Manner::Hold).await;
    for _ in 0..300 {
        test.accept_with(|it| it.needs.custom.clone_from(&gpu)).await;
    }
    test.until(|| executor.held() == 1).await;
    let other = test.accept(1).await.remove(0);
    test.until(|| executor.history().contains(&other)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_execution_gets_a_copy_elsewhere_and_the_first_success_ends_both() {
    let hedged = |settings: &mut settings::Settings| {
        settings.action_hedges = 1;
        settings.action_hedge_delay_ms = 100;
    };
    let test = Test::start_with(hedged).await;
    let _scheduler = test.scheduler().await;
    let slow = FakeExecutor::start(&test, "slow", 2, Manner::Hold).await;
    let key = test.accept(1).await.remove(0);
    test.until(|| slow.held() == 1).await;
    let quick = FakeExecutor::start(&test, "quick", 2, Manner::Hold).await;
    test.until(|| quick.held() == 1).await;
    assert_eq!((slow.taken(), quick.history()), (1, vec![key.clone()]));
    quick.finish_held().await;
    let ends = test.all_finished(std::slice::from_ref(&key)).await;
    assert_eq!(ends[&key].executor.as_ref(), Some(quick.id()));
    test.until(|| slow.cancelled() == vec![key.clone()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_fails_lets_the_other_go_on() {
    let hedged = |settings: &mut settings::Settings| {
        settings.action_hedges = 1;
        settings.action_hedge_delay_ms = 50;
    };
    let test = Test::start_with(hedged).await;
    let _scheduler = test.scheduler().await;
    let one = FakeExecutor::start(&test, "one", 1, Manner::Hold).await;
    let key = test.accept(1).await.remove(0);
    test.until(|| one.held() == 1).await;
    let two = FakeExecutor::start(&test, "two", 1, Manner::Hold).await;
    test.until(|| two.held() == 1).await;
    two.set_manner(Manner::Closed);
    two.end_held(ExecutionOutcome { exit_code: Some(1), ..outcome(Some("two")) }).await;
    let (_, record) = test.bus.records().latest(&key).await.unwrap().unwrap();
    assert!(matches!(record.phase, ExecutionPhase::CopyEnded { .. }), "{record:?}");
    one.finish_held().await;
    let ends = test.all_finished(std::slice::from_ref(&key)).await;
    assert!(ends[&key].is_success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_handed_over_runs_elsewhere() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let leaving = FakeExecutor::start(&test, "leaving", 4, Manner::Hold).await;
    let keys = test.accept(4).await;
    test.until(|| leaving.held() == 4).await;
    let other = FakeExecutor::start(&test, "other", 4, Manner::Finish).await;
    leaving.hand_over().await;
    test.all_finished(&keys).await;
    assert_eq!(other.taken(), 4);
    for key in &keys {
        let (_, record) = test.bus.records().latest(key).await.unwrap().unwrap();
        assert_eq!(record.attempt.0, 1, "it does not count as an attempt");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_warm_somewhere_goes_there_again_unless_it_failed_there() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let mut all = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        all.push(FakeExecutor::start(&test, name, 2, Manner::Hold).await);
    }
    let warm = |it: &mut model::Execution| it.keys.affinity = vec![model::ActionKey(7)];
    let holder = |all: &[FakeExecutor]| all.iter().position(|it| it.held() == 1);
    let mut ran = Vec::new();
    for code in [0, 0, 0, 1, 1, 1, 1, 1, 1, 1] {
        let key = test.accept_with(warm).await;
        test.until(|| holder(&all).is_some()).await;
        let at = holder(&all).unwrap();
        ran.push(at);
        all[at]
            .end_held(ExecutionOutcome { exit_code: Some(code), ..outcome(Some(all[at].id().as_str())) })
            .await;
        test.all_finished(std::slice::from_ref(&key)).await;
    }
    assert_eq!(ran[..4], [ran[0]; 4]);
    // Chance may send one there again, but not all.
    assert!(ran[4..].iter().any(|at| *at != ran[0]), "{ran:?}");
}

/// Requires one of these hardware groups, written `a|b`.
fn in_group(group: &str) -> impl Fn(&mut model::Execution) {
    let requirements = Requirements::of([("hwgroup", group)]);
    move |execution| execution.requirements = requirements.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_several_pools_could_run_runs_wherever_there_is_room() {
    let test = Test::start().await;
    let _schedulers = [test.scheduler().await, test.scheduler().await];
    let b = FakeExecutor::start_in(&test, "b", 2, "b", Manner::Finish).await;
    let mut keys = Vec::new();
    for _ in 0..4 {
        keys.push(test.accept_with(in_group("a|b")).await);
    }
    test.all_finished(&keys).await;
    assert_eq!(b.taken(), 4, "no executor of the other group lives");
    // Both hold what they get: each fills up.
    b.set_manner(Manner::Hold);
    let a = FakeExecutor::start_in(&test, "a", 2, "a", Manner::Hold).await;
    for _ in 0..4 {
        test.accept_with(in_group("a|b")).await;
    }
    test.until(|| (a.held(), b.held()) == (2, 2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_executor_can_run_waits_for_one_and_delays_no_other() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let a = FakeExecutor::start_in(&test, "a", 1, "a", Manner::Finish).await;
    let waits = test.accept_with(in_group("c")).await;
    let mut keys = vec![test.accept_with(in_group("a")).await, test.accept_with(|_| ()).await];
    test.all_finished(&keys).await;
    assert_eq!(a.taken(), 2);
    let c = FakeExecutor::start_in(&test, "c", 1, "c", Manner::Finish).await;
    keys.push(waits);
    test.all_finished(&keys).await;
    assert_eq!((a.taken(), c.taken()), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn very_many_different_requirements_are_all_met() {
    let test = Test::start().await;
    let _scheduler = test.scheduler().await;
    let mut keys = Vec::new();
    for number in 0..1200 {
        keys.push(test.accept_with(in_group(&format!("a|{number}"))).await);
    }
    let a = FakeExecutor::start_in(&test, "a", 4, "a", Manner::Finish).await;
    test.all_finished(&keys).await;
    assert_eq!(a.taken(), keys.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_scheduler_finds_what_waits_with_any_requirements() {
    let test = Test::start().await;
    let first = test.scheduler().await;
    let keys = [test.accept_with(in_group("a")).await, test.accept_with(in_group("a|b")).await];
    test.until_backlog(2).await;
    first.kill();
    let a = FakeExecutor::start_in(&test, "a", 1, "a", Manner::Finish).await;
    let _second = test.scheduler().await;
    test.all_finished(&keys).await;
    assert_eq!(a.taken(), 2);
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
    let cancelled = test.finish(&key, ExecutionOutcome { code: 1, ..outcome(None) }).await;
    assert!(matches!(cancelled, Written::Won(_)));
    test.until(|| executor.cancelled().contains(&key)).await;
    // If the order was lost, the next heartbeat that still names it reveals it; a heartbeat that confirms the grant may
    // have done so already.
    let before = executor.cancelled().len();
    executor.heartbeat(ExecutorStatus::Ready).await;
    test.until(|| executor.cancelled().len() > before).await;
    assert!(executor.cancelled().iter().all(|cancelled| *cancelled == key));
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
    assert_eq!((end.code, end.message.as_str()), (14, "waited 0 s: no executor is live"));
    let full = FakeExecutor::start(&test, "full", 1, Manner::Hold).await;
    test.accept(1).await;
    test.until(|| full.held() == 1).await;
    let key = test.accept_with(soon).await;
    let ends = test.all_finished(std::slice::from_ref(&key)).await;
    let message = &ends[&key].message;
    assert_eq!(message, "waited 0 s: the only executor is full: 1 running, 1 waiting");
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_and_waiting_are_told_apart_by_a_rebuild_from_the_floor() {
    let test = Test::start().await;
    let scheduler = test.scheduler().await;
    let executor = FakeExecutor::start(&test, "a", 8, Manner::Finish).await;
    let mut keys = test.accept(1000).await;
    test.all_finished(&keys).await;
    executor.set_manner(Manner::Hold);
    test.until_queue(|queue| queue.waiting == 0 && queue.running == 0).await;
    let floor = test.actions.floor().await.unwrap().unwrap();
    assert!(floor >= Sequence(1500));
    test.bus.buckets().put(&(), Some(&bus::ActionsFloor(floor))).await.unwrap();
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

/// Run with `cargo nextest run -p scheduler --run-ignored only --no-capture`: measures the cost of the scheduler, with
/// executors that do nothing.
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
    eprintln!("20000 queued, 16 slots: {rate:.0}/s, {:.1} us of Redis each", redis * 50.0);
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
