//! The spans of builds, made from their records.

#![allow(clippy::unwrap_used, reason = "the exemption of tests does not reach their helpers")]

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use model::{
    Attempt, BuildRecord, BuildRequest, BuildResult, Invocation, InvocationId, Millis, Outcome, Reason,
    ReasonCode, RequestLimits, Retry, Sequence, TimeLimits, WorkerId,
};
use proptest::prelude::{Just, prop_assert, prop_assert_eq, prop_oneof, proptest};
use telemetry::spans::Span;
use trace::{BuildTrace, Made, run_ended};

const PUBLISHER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn waiting() -> BuildRecord {
    let times = TimeLimits { timeout_seconds: 60, queue_timeout_seconds: 60, lease_ttl_seconds: 2 };
    let limits =
        RequestLimits { times, times_max: times, attempts: 3, attempts_max: 9, ..RequestLimits::default() };
    let request = BuildRequest {
        id: Some("00000000-0000-4000-8000-000000000001".parse().unwrap()),
        command: vec!["true".into()],
        ..BuildRequest::default()
    };
    let accepted = request.validate(&"g".parse().unwrap(), None, None, &limits, Millis(10_000)).unwrap();
    let mut record = BuildRecord::enqueued(accepted.build);
    record.build.traceparent = Some(PUBLISHER.to_owned());
    record
}

fn worker() -> WorkerId {
    "w".parse().unwrap()
}

fn start(record: &BuildRecord, at: u64) -> BuildRecord {
    let invocation = Invocation {
        id: Some(InvocationId::generate()),
        worker: worker(),
        workspace: 0,
        lease_revision: 1,
        started_at_ms: Millis(at),
        dispatched_at_us: at * 1000 - 500,
        dispatched_at_sequence: Sequence(0),
        workspace_kind: None,
    };
    record.started(invocation, Sequence(7))
}

fn finish(record: &BuildRecord, started_us: u64, wall_seconds: f64, end: u64) -> BuildRecord {
    let mut result = BuildResult::without_run(Outcome::Succeeded, ReasonCode::CommandFailed, "");
    result.reason = None;
    result.command_started_at_us = Some(started_us);
    result.wall_seconds = wall_seconds;
    record.finished(result, Millis(end))
}

fn length(span: &Span) -> Duration {
    span.end.duration_since(span.start).unwrap()
}

fn children<'a>(made: &'a Made, of: &Span) -> Vec<&'a Span> {
    made.spans.iter().filter(|it| it.parent == Some(of.context.span)).collect()
}

fn the<'a>(made: &'a Made, name: &str) -> &'a Span {
    made.spans.iter().find(|it| it.name == name).unwrap()
}

proptest! {
    /// Whatever the clocks of worker and dispatcher say, phases neither overlap nor leave a gap.
    #[test]
    fn phases_fill_their_attempt(
        claimed in 10_000_u64..20_000,
        started_us in 0_u64..40_000_000,
        wall in prop_oneof![0.0_f64..100.0, Just(1e19), Just(f64::NAN)],
        ran in 0_u64..30_000,
    ) {
        let before = start(&waiting(), claimed);
        let after = finish(&before, started_us, wall, claimed + ran);
        let made = run_ended(&before, &after);
        let invocation = the(&made, "invocation");
        let phases = children(&made, invocation);
        prop_assert_eq!(phases.iter().map(|it| length(it)).sum::<Duration>(), length(invocation));
        let root = the(&made, "BUILD");
        let parts = children(&made, root);
        prop_assert_eq!(parts.iter().map(|it| length(it)).sum::<Duration>(), length(root));
        for (span, next) in phases.iter().zip(phases.iter().skip(1)) {
            prop_assert_eq!(span.end, next.start);
        }
        let ids: BTreeSet<_> = made.spans.iter().map(|it| it.context.span).collect();
        prop_assert_eq!(ids.len(), made.spans.len());
        prop_assert!(made.keep.is_none());
    }
}

#[test]
fn attempts_are_siblings_and_a_lost_one_has_its_spans_too() {
    let first = start(&waiting(), 11_000);
    let reason = Reason { code: ReasonCode::LeaseExpired, message: "gone".into() };
    let retry = Retry { reason, worker: worker(), invocation: first.invocation_id() };
    let again = first.requeued(retry, true, Millis(16_000));
    let lost = run_ended(&first, &again);
    assert!(lost.keep.is_some() && !lost.spans.iter().any(|it| it.name == "BUILD"));
    let invocation = the(&lost, "invocation");
    assert_eq!(invocation.error.as_deref(), Some("gone"));
    assert_eq!(length(the(&lost, "lease expiry")), Duration::from_secs(2));
    assert_eq!(length(the(&lost, "run until the last sign of life")), Duration::from_secs(3));

    let second = start(&again, 17_000);
    let ended = run_ended(&second, &finish(&second, 17_100_000, 0.5, 18_000));
    let next = the(&ended, "invocation");
    assert_eq!(next.parent, invocation.parent);
    assert_eq!(next.links, [invocation.context]);
    assert_eq!(the(&ended, "queue").start, SystemTime::from(Millis(16_000)));
    let root = the(&ended, "BUILD");
    assert_eq!(invocation.parent, Some(root.context.span));
    assert_eq!(root.parent, Some(PUBLISHER.parse::<telemetry::spans::SpanContext>().unwrap().span));
}

#[test]
fn what_a_command_started_has_a_parent_however_the_attempt_ends() {
    let running = start(&waiting(), 11_000);
    let id_of = |made: &Made, name: &str| the(made, name).context.span;
    let command = id_of(&run_ended(&running, &finish(&running, 11_100_000, 0.5, 12_000)), "command");
    for (code, name) in [
        (ReasonCode::LeaseExpired, "run until the last sign of life"),
        (ReasonCode::WorkerDrained, "run until the requeue"),
    ] {
        let reason = Reason { code, message: "gone".into() };
        let retry = Retry { reason, worker: worker(), invocation: running.invocation_id() };
        let made = run_ended(&running, &running.requeued(retry, true, Millis(16_000)));
        assert_eq!(id_of(&made, name), command, "{name}");
        let parts = children(&made, the(&made, "invocation"));
        assert_eq!(parts.iter().map(|it| length(it)).sum::<Duration>(), Duration::from_secs(5));
    }
}

#[test]
fn what_failed_or_was_slow_is_kept() {
    let before = start(&waiting(), 11_000);
    assert_eq!(run_ended(&before, &finish(&before, 11_000_000, 30.0, 41_000)).keep, None);
    let mut expected = before.clone();
    expected.build.expected_ms = Some(14_000);
    assert!(run_ended(&expected, &finish(&expected, 11_000_000, 30.0, 41_000)).keep.is_some());
    let cancelled = BuildResult::without_run(Outcome::Cancelled, ReasonCode::Cancelled, "enough");
    let made = run_ended(&waiting(), &waiting().finished(cancelled, Millis(12_000)));
    assert!(made.keep.is_some());
    // People ask for cancellation: it is not an error.
    assert_eq!((the(&made, "BUILD").error.as_deref(), made.spans.len()), (None, 2));
}

#[test]
fn a_process_that_does_not_trace_passes_the_publisher_on() {
    let command = BuildTrace::of(&waiting().build).command(Attempt::FIRST);
    assert_eq!(command.unwrap().to_string(), PUBLISHER);
    let mut alone = waiting();
    alone.build.traceparent = None;
    assert_eq!(BuildTrace::of(&alone.build).command(Attempt::FIRST), None);
}
