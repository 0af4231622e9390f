use model::{BuildRequest, Digest, SendingBuild};
use shim::Cause;

use super::*;
use crate::testing;

fn record(group: &str) -> BuildRecord {
    let request = BuildRequest { command: vec!["true".into()], ..BuildRequest::default() };
    let build = testing::build(group, request);
    assert_ne!(build.request_digest, Digest::of(b""));
    BuildRecord::enqueued(build)
}

fn ended(wall_ms: u64, cpu_ms: u64, peak_memory_bytes: u64) -> Exit {
    Exit {
        exit_code: Some(0),
        signal: None,
        cause: Cause::Ended,
        wall: Duration::from_millis(wall_ms),
        cpu: Duration::from_millis(cpu_ms),
        peak_memory_bytes,
        switches: shim::Switches::default(),
    }
}

fn x86() -> ExecutorType {
    ExecutorType::x86()
}

#[test]
fn the_larger_of_processors_and_memory_counts() {
    let usage = Usage::new(x86());
    let of = |ended: &Exit| {
        usage.begin(0, &record("g"));
        usage.command_ended(0, ended);
        usage.end(0, Some(ended)).all.get(&x86()).units()
    };
    assert!((of(&ended(1000, 1500, 1 << 20)) - 1.5).abs() < 1e-3);
    assert!((of(&ended(1000, 500, 5_000_000_000)) - 2.0).abs() < 1e-3);
    // No wall time at all is not an infinite use.
    assert!((of(&ended(0, 1, 1 << 20)) - 1.0).abs() < 1e-3);
}

#[test]
fn actions_count_for_the_run_that_sent_them() {
    let usage = Usage::new(x86());
    let record = record("g");
    usage.begin(3, &record);
    let action_of = |group: &str, attempt, kind: &str, seconds| {
        usage.action(&ActionUsage {
            group: group.parse().unwrap(),
            build: SendingBuild { worker: "w".parse().unwrap(), id: record.build.id, attempt },
            executor_type: kind.parse().unwrap(),
            esu_seconds: Esu::new(seconds).unwrap(),
        });
    };
    let action = |attempt, kind: &str, seconds| action_of("g", attempt, kind, seconds);
    action(record.attempt, "x86", 3.0);
    action_of("h", record.attempt, "x86", 100.0);
    action(record.attempt, "gpu", 1.0);
    action(record.attempt.next(), "gpu", 100.0);
    let ended = ended(2000, 1000, 0);
    usage.command_ended(3, &ended);
    let used = usage.end(3, Some(&ended));
    assert_eq!(used.all.to_string(), "gpu 0.5, x86 2");
    assert_eq!(used.on_executors.to_string(), "gpu 0.5, x86 1.5");
    action(record.attempt, "x86", 1.0);
    assert!(usage.state.lock().runs.is_empty());
    // A job runs no command: its usage is that of its actions over the whole run.
    usage.begin(3, &record);
    usage.state.lock().runs.get_mut(&3).unwrap().begun_at =
        Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
    action(record.attempt, "x86", 40.0);
    let used = usage.end(3, None).on_executors.get(&x86()).units();
    assert!((used - 4.0).abs() < 0.1, "{used}");
    usage.begin(3, &record);
    assert_eq!(usage.end(3, None), UsedEsu::default(), "nothing ran");
}

#[test]
fn a_report_is_the_average_of_its_interval_and_the_last_is_zero() {
    let usage = Usage::new(x86());
    for group in ["a", "b", "a"] {
        usage.begin(0, &record(group));
        usage.state.lock().runs.get_mut(&0).unwrap().counted_at =
            Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let ended = ended(1000, 500, 0);
        usage.command_ended(0, &ended);
        usage.end(0, Some(&ended));
    }
    assert!(usage.is_used());
    let groups = usage.take_report(2.0);
    let of = |group: &str| groups[&group.parse::<Group>().unwrap()].get(&x86()).units();
    assert!((of("a") - 0.5).abs() < 0.01 && (of("b") - 0.25).abs() < 0.01, "{groups:?}");
    assert!(!usage.is_used());
    assert_eq!(usage.take_report(2.0), BTreeMap::new());
}
