use bytes::Bytes;
use model::{ExecutorType, Measured, RequestedProperty, Resources};
use serde_json::{Value, json};

use super::*;

const NOW: Millis = Millis(100_000);

fn record(sequence: u64, number: u8, event: &str, more: &Value) -> Stored {
    let id = format!("00000000-0000-4000-8000-0000000000{number:02}");
    let mut all = json!({
        "event": event,
        "execution": {
            "id": id,
            "group": "g",
            "action": format!("{}/0", "0".repeat(64)),
            "accepted_at_ms": 100_000 - 1000 * u64::from(number),
        },
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let payload = Bytes::from(all.to_string());
    Stored {
        subject: "x".to_owned(),
        sequence: Sequence(sequence),
        at: model::Millis(0),
        headers: None,
        payload,
    }
}

fn pool(name: &str) -> Pool {
    Pool {
        name: name.parse().unwrap(),
        properties: BTreeMap::from([("hwgroup".to_owned(), vec![name.to_owned()])]),
        root_is_input: false,
        capacity: Resources::new(4000, 8 << 30),
        executor_type: ExecutorType::x86(),
    }
}

fn accepted(sequence: u64, number: u8) -> Stored {
    record(sequence, number, "ACTION_ACCEPTED", &json!({}))
}

fn finished(sequence: u64, number: u8, wall_ms: u64) -> Stored {
    let measured = serde_json::to_value(Measured { wall_ms, ..Measured::default() }).unwrap();
    record(sequence, number, "ACTION_FINISHED", &json!({ "measured": measured, "code": 0, "exit_code": 0 }))
}

fn after(records: &[Stored]) -> Executions {
    let mut executions = Executions::default();
    executions.set_pools(vec![pool("default"), pool("other")]);
    for stored in records {
        executions.apply(stored).unwrap();
        executions.read_up_to(stored.sequence);
    }
    executions
}

fn work(executions: &mut Executions, pool: &str, waiting: u64, running: u64) -> Work {
    executions.work(&pool.parse().unwrap(), (waiting, running), Some(Sequence(0)), Duration::ZERO, NOW)
}

#[test]
fn what_waits_takes_as_long_as_its_like_took() {
    let mut executions =
        after(&[accepted(1, 9), finished(2, 9, 4000), accepted(3, 1), accepted(4, 2), accepted(5, 3)]);
    let seen = work(&mut executions, "default", 2, 1);
    assert_eq!((seen.waiting, seen.running, seen.arrived), (2, 1, 4));
    assert_eq!(seen.service, Duration::from_secs(4));
    assert_eq!(seen.queued, Duration::from_secs(8), "of three that are unfinished two wait");
    assert_eq!(seen.oldest_wait, Duration::from_secs(2), "the oldest runs");
    assert_eq!(seen.upto, Sequence(5));
}

#[test]
fn pools_are_told_apart() {
    let mut executions = after(&[accepted(1, 1), accepted(2, 2)]);
    let other = work(&mut executions, "other", 0, 0);
    assert!(other.is_none() && other.arrived == 0 && other.queued.is_zero(), "{other:?}");
}

#[test]
fn the_index_may_know_of_more_than_was_read() {
    let seen = work(&mut after(&[]), "default", 3, 0);
    assert_eq!(seen.queued, 3 * crate::work::UNKNOWN);
}

#[test]
fn what_waits_counts_for_the_pool_that_gets_executors_for_it() {
    let mut executions = after(&[accepted(1, 1), accepted(2, 2), accepted(3, 3), accepted(4, 4)]);
    let backlog = |value: Option<&str>, count: u64| {
        let property =
            |value: &str| RequestedProperty { name: "hwgroup".to_owned(), value: value.to_owned() };
        let properties = value.into_iter().map(property).collect();
        let requirements = Requirements { properties, root_is_input: false };
        Backlog { requirements, groups: vec![("g".parse().unwrap(), count)] }
    };
    let all = [backlog(None, 3), backlog(Some("other"), 5), backlog(Some("third"), 7)];
    let waiting = |executions: &Executions, pool: &str| executions.waiting(&pool.parse().unwrap(), &all);
    assert_eq!(["default", "other"].map(|pool| waiting(&executions, pool)), [3, 5]);
    executions.set_pools(vec![pool("other")]);
    assert_eq!(["default", "other"].map(|pool| waiting(&executions, pool)), [0, 8]);
}
