use model::{ActionKeys, BlobDigest, ClientTool, Execution, Measured, Needs, Requirements};
use proptest::prelude::*;

use super::*;

fn accepted(max_attempts: u32) -> ExecutionRecord {
    let digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855/0";
    ExecutionRecord::accepted(Execution {
        id: "00000000-0000-4000-8000-000000000001".parse().unwrap(),
        group: "g".parse().unwrap(),
        instance: String::new(),
        action: serde_digest(digest),
        band: model::Priority::Interactive,
        priority: 0,
        requirements: Requirements::of([("Arch", "arm64")]),
        timeout_ms: 1000,
        image: None,
        do_not_cache: false,
        zone: None,
        caller: String::new(),
        accepted_at_ms: Millis(1000),
        expires_at_ms: Millis(61_000),
        max_attempts: Attempt(max_attempts),
        traceparent: None,
        client: ClientTool::default(),
        build: None,
        needs: Needs::default(),
        keys: ActionKeys::default(),
    })
}

fn serde_digest(text: &str) -> BlobDigest {
    text.parse().unwrap()
}

fn executor(name: &str) -> ExecutorId {
    name.parse().unwrap()
}

fn exited(code: i32) -> ExecutionOutcome {
    ExecutionOutcome {
        exit_code: Some(code),
        measured: Some(Measured::default()),
        ..ExecutionOutcome::without_run(0, String::new())
    }
}

fn lost(reason: &str) -> CopyEnd {
    CopyEnd::Infrastructure { reason: reason.into() }
}

fn out_of_memory(had: u64, most: u64) -> CopyEnd {
    let outcome = ExecutionOutcome::without_run(8, "it ran out of memory".into());
    CopyEnd::OutOfMemory { outcome, had, most }
}

/// What follows at position 7 when the copy on executor `name` ends with `end`.
fn after(record: &ExecutionRecord, name: &str, end: CopyEnd) -> Option<AfterCopy> {
    after_copy(record, Sequence(7), &executor(name), end, Millis(9))
}

fn requeued(record: &ExecutionRecord, name: &str, end: CopyEnd) -> ExecutionRecord {
    match after(record, name, end) {
        Some(AfterCopy::Requeue(next)) => *next,
        other => panic!("{other:?}"),
    }
}

fn finished(record: &ExecutionRecord, name: &str, end: CopyEnd) -> ExecutionOutcome {
    match after(record, name, end) {
        Some(AfterCopy::Finish(last)) => last.outcome().unwrap().clone(),
        other => panic!("{other:?}"),
    }
}

fn goes_on(record: &ExecutionRecord, name: &str, end: CopyEnd) -> ExecutionRecord {
    match after(record, name, end) {
        Some(AfterCopy::GoOn(next)) => *next,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lost_execution_waits_again_in_its_old_place_until_its_attempts_are_used_up() {
    let mut record = accepted(3);
    for attempt in 2..=3 {
        let next = requeued(&record, &format!("x{attempt}"), lost("executor x on h was lost"));
        assert_eq!(
            (next.attempt, next.place, next.waits_since()),
            (Attempt(attempt), Sequence(7), Millis(9))
        );
        record = next;
    }
    assert_eq!(record.so_far.avoid, [executor("x2"), executor("x3")]);
    let Some(AfterCopy::GiveUp(last)) = after(&record, "x", lost("executor x on h was lost")) else {
        panic!("never given up")
    };
    let outcome = last.outcome().unwrap();
    assert_eq!(outcome.code, 14);
    assert_eq!(outcome.message, "given up after 3 attempts; the last one: executor x on h was lost");
    assert_eq!(after(&last, "x", lost("again")), None, "it has its result");
    assert_eq!(after(&last, "x", CopyEnd::Outcome(exited(0))), None, "however late a success comes");
}

#[test]
fn a_command_that_failed_is_never_tried_again() {
    assert_eq!(finished(&accepted(3), "x", CopyEnd::Outcome(exited(1))), exited(1));
    let missing = ExecutionOutcome::without_run(9, "an input is missing".into());
    assert_eq!(finished(&accepted(3), "x", CopyEnd::Outcome(missing.clone())), missing);
}

#[test]
fn the_first_success_is_the_result_whatever_the_other_copies_do() {
    let hedged = accepted(3).hedged(Sequence(7), Millis(8)).hedged(Sequence(8), Millis(8));
    assert_eq!(finished(&hedged, "x", CopyEnd::Outcome(exited(0))), exited(0));
    let failed = goes_on(&hedged, "y", CopyEnd::Outcome(exited(1)));
    assert_eq!(finished(&failed, "x", CopyEnd::Outcome(exited(0))), exited(0));
}

#[test]
fn while_another_copy_runs_the_end_of_one_is_only_noted() {
    let hedged = accepted(1).hedged(Sequence(7), Millis(8));
    for end in [CopyEnd::Outcome(exited(1)), lost("gone"), out_of_memory(100, 1000)] {
        let next = goes_on(&hedged, "x", end);
        assert_eq!((next.copies(), next.attempt), (1, Attempt(1)));
        assert_eq!(next.so_far.avoid, [executor("x")]);
    }
    let next = goes_on(&hedged, "x", CopyEnd::Outcome(exited(3)));
    let ExecutionPhase::CopyEnded { reason, .. } = &next.phase else { panic!("{next:?}") };
    assert_eq!(reason, "the command exited with code 3");
    assert_eq!(next.so_far.failure.as_deref(), Some(&exited(3)));
}

#[test]
fn when_no_copy_is_left_the_failure_of_one_is_the_result() {
    let failed = goes_on(&accepted(3).hedged(Sequence(7), Millis(8)), "x", CopyEnd::Outcome(exited(1)));
    assert_eq!(
        finished(&failed, "y", lost("executor y on h was lost")),
        exited(1),
        "it is the command's fault"
    );
    assert_eq!(finished(&failed, "y", CopyEnd::Outcome(exited(2))), exited(2), "the last one counts");
    let last = after(&failed, "y", lost("gone")).unwrap();
    assert_eq!(last.record().so_far.failure, None, "and is not kept twice");
}

#[test]
fn when_all_copies_are_lost_it_waits_again_as_one() {
    let hedged = accepted(3).hedged(Sequence(7), Millis(8));
    let next = requeued(&goes_on(&hedged, "x", lost("x was lost")), "y", lost("y was lost"));
    assert_eq!((next.copies(), next.attempt, next.so_far.hedges), (1, Attempt(2), 0));
    assert_eq!(next.so_far.avoid, [executor("x"), executor("y")]);
    let ExecutionPhase::Requeued { reason, executor: who } = &next.phase else { panic!("{next:?}") };
    assert_eq!((reason.as_str(), who.as_ref()), ("y was lost", Some(&executor("y"))));
}

#[test]
fn what_ran_out_of_memory_is_tried_again_with_twice_as_much_anywhere() {
    let next = requeued(&accepted(5), "x", out_of_memory(100, 1000));
    assert_eq!((next.so_far.memory_bytes, next.attempt), (Some(200), Attempt(2)));
    assert_eq!(next.so_far.avoid, [], "the executor is not to blame");
    let next = requeued(&next, "x", out_of_memory(200, 1000));
    assert_eq!(next.so_far.memory_bytes, Some(400));
    let next = requeued(&next, "y", lost("y was lost"));
    assert_eq!(next.so_far.memory_bytes, Some(400), "it is not forgotten");
    let next = requeued(&next, "x", out_of_memory(600, 1000));
    assert_eq!(next.so_far.memory_bytes, Some(1000), "no more than there is");
}

#[test]
fn what_runs_out_of_all_the_memory_there_is_or_too_often_ends_so() {
    for record in [accepted(5), accepted(1)] {
        let most = if record.execution.max_attempts == Attempt(1) { 1000 } else { 100 };
        assert_eq!(finished(&record, "x", out_of_memory(100, most)).message, "it ran out of memory");
    }
    let hedged = goes_on(&accepted(5).hedged(Sequence(7), Millis(8)), "x", CopyEnd::Outcome(exited(1)));
    let next = requeued(&hedged, "y", out_of_memory(100, 1000));
    assert_eq!(next.so_far.failure, None, "more memory may mend it");
}

#[test]
fn an_overdue_execution_says_why_it_waited() {
    let record = accepted(3);
    assert_eq!(overdue(&record, Sequence(7), PoolState::default(), Millis(60_999)), None);
    let message = |record: &ExecutionRecord, state, now| {
        overdue(record, Sequence(7), state, Millis(now)).unwrap().outcome().unwrap().message.clone()
    };
    assert_eq!(
        message(&record, PoolState::default(), 61_000),
        "waited 60 s: no executor with Arch = \"arm64\" is live"
    );
    let full = PoolState { executors: 2, waiting: 9, running: 4 };
    let why = "waited 60 s: all 2 executors with Arch = \"arm64\" are full: 4 running, 9 waiting";
    assert_eq!(message(&record, full, 61_000), why);
    let one = PoolState { executors: 1, ..full };
    assert!(
        message(&record, one, 61_000)
            .ends_with("the only executor with Arch = \"arm64\" is full: 4 running, 9 waiting")
    );
    let reason = "executor x on h was lost".to_owned();
    let again = record.requeued(Sequence(7), reason, Some(executor("x")), true, Millis(500_000));
    assert_eq!(overdue(&again, Sequence(8), full, Millis(559_999)), None);
    assert!(
        message(&again, full, 560_000).contains("after its first run was lost (executor x on h was lost)")
    );
    let ended = record.finished(Sequence(7), exited(0), Millis(2000));
    assert_eq!(overdue(&ended, Sequence(8), full, Millis(1 << 40)), None, "it has its result");
}

/// An event in the life of an execution.
#[derive(Debug, Clone)]
enum Event {
    Hedge,
    End(u8, Box<CopyEnd>),
}

fn any_event() -> impl Strategy<Value = Event> {
    let end = prop_oneof![
        (0_i32..3).prop_map(|code| CopyEnd::Outcome(exited(code))),
        (1_u64..1 << 40, 1_u64..1 << 40).prop_map(|(had, most)| out_of_memory(had, most)),
        Just(lost("gone")),
    ];
    prop_oneof![1 => Just(Event::Hedge), 3 => (0_u8..4, end).prop_map(|(who, end)| Event::End(who, Box::new(end)))]
}

#[test]
fn what_failed_once_waits_for_no_other_copy_that_nobody_has() {
    let hedged = accepted(3).hedged(Sequence(1), Millis(1));
    let end = CopyEnd::Outcome(exited(7));
    let Some(AfterCopy::GoOn(record)) =
        after_copy(&hedged, Sequence(2), &"x".parse().unwrap(), end, Millis(2))
    else {
        panic!("the copy that waits may be running")
    };
    assert_eq!(waits_until(&record), Millis(1));
    let ended = overdue(&record, Sequence(3), PoolState::default(), Millis(3)).unwrap();
    assert_eq!(ended.outcome().unwrap().exit_code, Some(7));
}

proptest! {
    #[test]
    fn nothing_is_overdue_before_its_whole_time(accepted in 0_u64..1 << 40, wait in 0_u64..1 << 30, ran in 0_u64..1 << 30) {
        let mut record = super::tests::accepted(3);
        record.execution.accepted_at_ms = Millis(accepted);
        record.execution.expires_at_ms = Millis(accepted + wait);
        prop_assert_eq!(waits_until(&record), Millis(accepted + wait));
        record.so_far.requeued_at_ms = Some(Millis(accepted + ran));
        prop_assert_eq!(waits_until(&record), Millis(accepted + ran + wait));
    }

    #[test]
    fn whatever_happens_it_ends_once_within_its_attempts(
        max_attempts in 1_u32..5,
        events in prop::collection::vec(any_event(), 0..40),
    ) {
        let mut record = accepted(max_attempts);
        for (at, event) in (1_u64..).zip(events) {
            let sequence = Sequence(at);
            let (who, end) = match event {
                Event::Hedge if record.outcome().is_none() => {
                    record = record.hedged(sequence, Millis(at));
                    continue;
                }
                Event::Hedge => continue,
                Event::End(who, end) => (executor(&format!("x{who}")), *end),
            };
            let Some(next) = after_copy(&record, sequence, &who, end.clone(), Millis(at)) else {
                prop_assert!(record.outcome().is_some());
                continue;
            };
            prop_assert!(record.outcome().is_none(), "no result is replaced");
            let succeeds = matches!(&end, CopyEnd::Outcome(outcome) if outcome.is_success());
            match &next {
                AfterCopy::Finish(last) => {
                    let outcome = last.outcome().unwrap();
                    prop_assert_eq!(succeeds, outcome.is_success());
                    prop_assert!(succeeds || record.copies() <= 1);
                }
                AfterCopy::GoOn(next) => {
                    prop_assert!(record.copies() > 1 && !succeeds && next.copies() == record.copies() - 1);
                    prop_assert_eq!(next.attempt, record.attempt);
                }
                AfterCopy::Requeue(next) => {
                    prop_assert!(record.copies() <= 1 && !matches!(end, CopyEnd::Outcome(_)));
                    prop_assert_eq!((next.attempt, next.copies()), (record.attempt.next(), 1));
                    prop_assert!(next.so_far.memory_bytes >= record.so_far.memory_bytes);
                    prop_assert_eq!(&next.so_far.failure, &None);
                }
                AfterCopy::GiveUp(last) => {
                    prop_assert_eq!(record.attempt, Attempt(max_attempts));
                    let is_lost = matches!(end, CopyEnd::Infrastructure { .. });
                    prop_assert!(is_lost);
                    prop_assert_eq!(last.outcome().unwrap().code, 14);
                }
            }
            record = next.record().clone();
            prop_assert!(record.attempt <= Attempt(max_attempts) && record.so_far.avoid.len() <= 8);
            prop_assert_eq!(record.place, Sequence(1), "where it was accepted");
        }
    }
}
