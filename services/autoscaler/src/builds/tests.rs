use bytes::Bytes;
use serde_json::{Value, json};

use super::*;

const NOW: Millis = Millis(100_000);

fn id(number: u8) -> String {
    format!("00000000-0000-4000-8000-0000000000{number:02}")
}

fn message(sequence: u64, number: u8, event: &str, more: &Value) -> Stored {
    let mut all = json!({
        "id": id(number),
        "group": "g",
        "priority": "batch",
        "attempt": 1,
        "at_ms": 90_000,
        "submitted_at_ms": 60_000,
        "timeout_seconds": 60,
        "event": event,
        "queue": { "enqueued_at_ms": 60_000, "expires_at_ms": 0 },
    });
    let fields = all.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    Stored {
        subject: format!("forebay.build.event.g.{}.lifecycle", id(number)),
        sequence: Sequence(sequence),
        at: NOW,
        headers: None,
        payload: Bytes::from(all.to_string()),
    }
}

fn waits(sequence: u64, number: u8, expected_ms: u64) -> Stored {
    message(sequence, number, "BUILD_ENQUEUED", &json!({ "expected_ms": expected_ms }))
}

fn runs(sequence: u64, number: u8) -> Stored {
    let invocation = json!({ "worker": "worker-a", "workspace": 0, "started_at_ms": 80_000 });
    message(sequence, number, "INVOCATION_STARTED", &json!({ "invocation": invocation }))
}

fn ended(sequence: u64, number: u8) -> Stored {
    let invocation = json!({ "worker": "worker-a", "workspace": 0, "started_at_ms": 80_000 });
    message(sequence, number, "INVOCATION_FINISHED", &json!({ "invocation": invocation }))
}

fn after(messages: &[Stored]) -> Builds {
    let mut builds = Builds::default();
    for stored in messages {
        builds.apply(stored).unwrap();
        builds.read_up_to(stored.sequence);
    }
    builds
}

fn work(builds: &mut Builds, counted: u64) -> Work {
    builds.work(Some(Sequence(counted)), Duration::ZERO, Limits(None), NOW)
}

#[test]
fn what_waits_is_added_up_by_its_estimates() {
    let work = work(&mut after(&[waits(1, 1, 2000), waits(2, 2, 3000), waits(3, 3, 500), runs(4, 3)]), 1);
    assert_eq!((work.waiting, work.running, work.held_back), (2, 1, 0));
    assert_eq!(work.queued, Duration::from_secs(5));
    assert_eq!(work.oldest_wait, Duration::from_secs(40));
    assert_eq!(work.busy, ["worker-a".to_owned()].into());
    assert_eq!((work.arrived, work.upto), (2, Sequence(4)), "one was counted before");
}

#[test]
fn what_ended_is_gone_and_tells_how_long_builds_take() {
    let mut builds = after(&[waits(1, 1, 2000), runs(2, 1), ended(3, 1)]);
    let seen = work(&mut builds, 0);
    assert!(seen.is_none(), "{seen:?}");
    assert_eq!(seen.service, Duration::from_secs(10));
    assert_eq!(
        work(&mut builds, 3).service,
        Duration::ZERO,
        "a decision counted it: its record has the average"
    );
}

#[test]
fn a_build_without_estimate_takes_as_long_as_others() {
    let plain = message(4, 2, "BUILD_ENQUEUED", &json!({}));
    let seen = work(&mut after(&[waits(1, 1, 2000), runs(2, 1), ended(3, 1), plain]), 0);
    assert_eq!(seen.queued, Duration::from_secs(10));
}

#[test]
fn one_that_waits_again_is_no_new_one() {
    let queue = json!({ "queue": { "enqueued_at_ms": 95_000, "expires_at_ms": 0, "first_sequence": 1 } });
    let again = message(3, 1, "BUILD_ENQUEUED", &queue);
    let mut builds = after(&[waits(1, 1, 2000), runs(2, 1), again]);
    let seen = work(&mut builds, 0);
    assert_eq!((seen.waiting, seen.running, seen.arrived), (1, 0, 1));
    assert_eq!(seen.oldest_wait, Duration::from_secs(5));
}

#[test]
fn what_is_older_than_what_is_known_changes_nothing() {
    let mut builds = after(&[runs(5, 1)]);
    assert!(!builds.apply(&waits(2, 1, 2000)).unwrap());
    assert_eq!(work(&mut builds, 0).running, 1);
}

#[test]
fn what_cannot_be_read_is_named() {
    let mut broken = waits(7, 1, 1);
    broken.payload = Bytes::from_static(b"{}");
    let error = Builds::default().apply(&broken).unwrap_err().to_string();
    assert!(error.contains('7'), "{error}");
}
