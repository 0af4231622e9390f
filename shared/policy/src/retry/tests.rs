use model::{BuildRequest, Invocation, InvocationId, RequestLimits, Sequence, State, TimeLimits};

use super::*;

fn running(attempts: u32) -> BuildRecord {
    let times = TimeLimits { timeout_seconds: 1, queue_timeout_seconds: 1, lease_ttl_seconds: 1 };
    let limits =
        RequestLimits { times, times_max: times, attempts, attempts_max: 9, ..RequestLimits::default() };
    let request = BuildRequest {
        id: Some("00000000-0000-4000-8000-000000000001".parse().unwrap()),
        command: vec!["true".into()],
        ..BuildRequest::default()
    };
    let accepted = request.validate(&"g".parse().unwrap(), None, None, &limits, Millis(1)).unwrap();
    start(&BuildRecord::enqueued(accepted.build))
}

fn start(record: &BuildRecord) -> BuildRecord {
    let invocation = Invocation {
        id: Some(InvocationId::generate()),
        worker: worker(),
        workspace: 0,
        lease_revision: 1,
        started_at_ms: Millis(2),
        dispatched_at_us: 0,
        dispatched_at_sequence: Sequence(0),
        workspace_kind: None,
    };
    record.started(invocation, Sequence(7))
}

fn worker() -> WorkerId {
    "w".parse().unwrap()
}

fn lose(record: &BuildRecord, code: ReasonCode) -> AfterLoss {
    after_loss(record, worker(), Reason { code, message: "x".into() }, Millis(9))
}

#[test]
fn a_lost_build_waits_again_in_its_old_place_until_its_attempts_are_used_up() {
    let mut record = running(3);
    for attempt in 2..=3 {
        let AfterLoss::Requeue(next) = lose(&record, ReasonCode::LeaseExpired) else {
            panic!("given up early")
        };
        assert_eq!((next.attempt, next.state()), (Attempt(attempt), State::Enqueued));
        assert_eq!(next.queue.first_sequence, Some(Sequence(7)));
        record = start(&next);
    }
    let AfterLoss::GiveUp(last) = lose(&record, ReasonCode::LeaseExpired) else { panic!("never given up") };
    assert_eq!(last.result().unwrap().outcome, Outcome::Lost);
}

#[test]
fn a_drained_worker_does_not_count_against_the_build() {
    let mut record = running(1);
    for _ in 0..5 {
        let AfterLoss::Requeue(next) = lose(&record, ReasonCode::WorkerDrained) else { panic!("given up") };
        record = start(&next);
    }
    assert!(matches!(lose(&record, ReasonCode::LeaseExpired), AfterLoss::GiveUp(_)));
}

#[test]
fn a_build_that_stores_its_outputs_has_more_time() {
    let ends = |stored_at| overrun_at(Millis(30_000), stored_at, Duration::from_secs(60)).0;
    assert_eq!([None, Some(Millis(29_000)), Some(Millis(50_000))].map(ends), [90_000, 90_000, 110_000]);
}
