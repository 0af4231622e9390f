use model::{BlobDigest, ClientTool, Execution};
use proptest::prelude::*;

use super::*;

fn accepted(max_attempts: u32) -> ExecutionRecord {
    let digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855/0";
    ExecutionRecord::accepted(Execution {
        id: "00000000-0000-4000-8000-000000000001".parse().unwrap(),
        group: "g".parse().unwrap(),
        instance: String::new(),
        action: serde_digest(digest),
        priority: 0,
        pool: "default".parse().unwrap(),
        timeout_ms: 1000,
        do_not_cache: false,
        accepted_at_ms: Millis(1000),
        expires_at_ms: Millis(61_000),
        max_attempts: Attempt(max_attempts),
        traceparent: None,
        client: ClientTool::default(),
        build: None,
    })
}

fn serde_digest(text: &str) -> BlobDigest {
    text.parse().unwrap()
}

#[test]
fn a_lost_execution_waits_again_in_its_old_place_until_its_attempts_are_used_up() {
    let mut record = accepted(3);
    let mut sequence = Sequence(7);
    for attempt in 2..=3 {
        let next = after_executor_loss(&record, sequence, "executor x on h was lost", Millis(9)).unwrap();
        let AfterExecutorLoss::Requeue(next) = next else { panic!("given up early") };
        assert_eq!((next.attempt, next.place), (Attempt(attempt), Sequence(7)));
        record = *next;
        sequence = Sequence(sequence.0 + 10);
    }
    let next = after_executor_loss(&record, sequence, "executor x on h was lost", Millis(9)).unwrap();
    let AfterExecutorLoss::GiveUp(last) = next else { panic!("never given up") };
    let outcome = last.outcome().unwrap();
    assert_eq!(outcome.code, 14);
    assert_eq!(outcome.message, "given up after 3 attempts; the last one: executor x on h was lost");
    assert_eq!(after_executor_loss(&last, sequence, "again", Millis(9)), None);
}

#[test]
fn an_overdue_execution_says_why_it_waited() {
    let record = accepted(3);
    assert_eq!(overdue(&record, Sequence(7), PoolState::default(), Millis(60_999)), None);
    let message = |record: &ExecutionRecord, state, now| {
        overdue(record, Sequence(7), state, Millis(now)).unwrap().outcome().unwrap().message.clone()
    };
    assert_eq!(message(&record, PoolState::default(), 61_000), "waited 60 s: pool default has no executor");
    let full = PoolState { executors: 2, waiting: 9, running: 4 };
    let why = "waited 60 s: the 2 executors of pool default are full: 4 run, 9 wait";
    assert_eq!(message(&record, full, 61_000), why);
    let again = record.requeued(Sequence(7), "executor x on h was lost".to_owned(), Millis(500_000));
    assert_eq!(overdue(&again, Sequence(8), full, Millis(559_999)), None);
    assert!(
        message(&again, full, 560_000).contains("after its first run was lost (executor x on h was lost)")
    );
}

proptest! {
    #[test]
    fn nothing_is_overdue_before_its_whole_time(accepted in 0_u64..1 << 40, wait in 0_u64..1 << 30, ran in 0_u64..1 << 30) {
        let (start, expires) = (Millis(accepted), Millis(accepted + wait));
        prop_assert_eq!(waits_until(start, expires, start), expires);
        prop_assert_eq!(waits_until(start, expires, Millis(accepted + ran)), Millis(accepted + ran + wait));
    }
}
