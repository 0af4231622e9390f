//! Tests of the queue simulator.

mod aged;
mod files;
mod thesis;

use std::fmt::Write as _;

use policy::Random;
use replay::{InvalidStream, Job, Lateness, Start, Stream, lateness, outcome};

use super::*;
use crate::{random, statistics::whole};

/// The starts of `stream` under the policy with this name.
fn starts(stream: &Stream, policy: &str, reading: Reading) -> Vec<Start> {
    let policy = policy.parse().unwrap();
    run_queue(stream, &Run { policy, reading, seed: 1 }).unwrap()
}

fn waits(stream: &Stream, starts: &[Start]) -> Vec<u64> {
    stream.jobs.iter().zip(starts).map(|(job, start)| start.start_ms - job.arrival_ms).collect()
}

/// A stream of text lines for the given number of equal workers.
fn stream(lines: &str, workers: u64) -> Stream {
    let mut stream = read_trace("test", lines, 1, Reading::Text).unwrap();
    stream.workers = alike_workers(workers, &stream.requirements).unwrap();
    stream
}

#[test]
fn what_arrives_at_a_moment_comes_before_what_ends_at_it() {
    // When the first ends, the second has just arrived and waits; it starts at that instant.
    let lines = r#"{"arrival_ms": 0, "duration_ms": 100}
        {"arrival_ms": 100, "duration_ms": 10}
        {"arrival_ms": 100, "duration_ms": 5}"#;
    let stream = stream(lines, 1);
    let starts_of =
        |policy| starts(&stream, policy, Reading::Text).iter().map(|s| s.start_ms).collect::<Vec<_>>();
    assert_eq!(starts_of("1/fcfs/-"), [0, 100, 110]);
    assert_eq!(starts_of("1/spt/oracle"), [0, 105, 100], "both wait when the worker becomes free");
}

#[test]
fn urgent_jobs_start_first_whatever_the_order() {
    let lines = r#"{"arrival_ms": 0, "duration_ms": 100}
        {"arrival_ms": 1, "duration_ms": 10, "priority": "batch"}
        {"arrival_ms": 2, "duration_ms": 50, "priority": "emergency"}"#;
    let starts = starts(&stream(lines, 1), "1/spt/oracle", Reading::Text);
    assert_eq!(starts.iter().map(|start| start.start_ms).collect::<Vec<_>>(), [0, 150, 100]);
}

#[test]
fn by_load_a_job_goes_to_whoever_has_least_left_to_do() {
    let lines = r#"{"arrival_ms": 0, "duration_ms": 1000}
        {"arrival_ms": 0, "duration_ms": 600}
        {"arrival_ms": 0, "duration_ms": 100}
        {"arrival_ms": 500, "duration_ms": 10}"#;
    let stream = stream(lines, 2);
    let workers =
        |policy, reading| starts(&stream, policy, reading).iter().map(|s| s.worker).collect::<Vec<_>>();
    // Worker 0 has 500 left, worker 1 has 100 and 100.
    assert_eq!(workers("n/load/oracle", Reading::Text), [0, 1, 1, 1]);
    assert_eq!(workers("n/load/queue_size", Reading::Text), [0, 1, 0, 1]);
    // The running job does not count: all stay with the first until something waits there.
    assert_eq!(workers("n/load/oracle", Reading::Code), [0, 0, 1, 1]);
    assert_eq!(workers("n/round_robin/-", Reading::Text), [0, 1, 0, 1]);
}

#[test]
fn a_load_sinks_no_further_when_a_job_takes_longer_than_expected() {
    // Worker 0 was expected to finish at 10; at 500 it counts as finished, and is the first of two with nothing left.
    let lines = r#"{"arrival_ms": 0, "duration_ms": 1000, "estimate_ms": 10}
        {"arrival_ms": 0, "duration_ms": 1000, "estimate_ms": 600}
        {"arrival_ms": 500, "duration_ms": 10, "estimate_ms": 10}
        {"arrival_ms": 501, "duration_ms": 10, "estimate_ms": 200}
        {"arrival_ms": 502, "duration_ms": 10, "estimate_ms": 1}"#;
    let starts = starts(&stream(lines, 2), "n/load/imprecise", Reading::Text);
    // Then 10 against 99; then 210 against 98.
    assert_eq!(starts.iter().map(|start| start.worker).collect::<Vec<_>>(), [0, 1, 0, 0, 1]);
}

#[test]
fn jobs_run_where_their_requirements_are_met() {
    let lines = r#"{"arrival_ms": 0, "duration_ms": 100, "requirements": {"hwgroup": "a"}}
        {"arrival_ms": 0, "duration_ms": 100, "requirements": {"hwgroup": "b", "threads": 4}}
        {"arrival_ms": 0, "duration_ms": 100, "requirements": {"hwgroup": "a|b"}}
        {"arrival_ms": 0, "duration_ms": 100, "requirements": {"hwgroup": "a"}}"#;
    let mut stream = stream(lines, 1);
    let workers = r#"[{"offers": {"hwgroup": "b", "threads": 8}}, {"offers": {"hwgroup": ["a"], "threads": 1}, "count": 2}]"#;
    stream.workers = read_workers(workers).unwrap();
    for policy in QueuePolicy::all() {
        for reading in Reading::ALL {
            let starts = starts(&stream, &policy.to_string(), reading);
            assert_eq!(starts[1].worker, 0, "{policy}");
            assert!(starts[0].worker > 0 && starts[3].worker > 0, "{policy}");
        }
    }
}

#[test]
fn every_job_starts_once_no_earlier_than_it_arrives_and_no_worker_runs_two() {
    for workload in [Workload::MultiType, Workload::MediumShort] {
        for reading in Reading::ALL {
            let stream = workload.stream(3, reading);
            for policy in QueuePolicy::all() {
                let starts = starts(&stream, &policy.to_string(), reading);
                let mut runs: Vec<(u32, u64, u64)> = stream
                    .jobs
                    .iter()
                    .zip(&starts)
                    .map(|(job, start)| {
                        assert!(start.start_ms >= job.arrival_ms);
                        (start.worker, start.start_ms, start.start_ms + job.duration_ms)
                    })
                    .collect();
                runs.sort_unstable();
                let apart = |pair: &[(u32, u64, u64)]| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1;
                assert!(runs.windows(2).all(apart), "{workload} {policy}");
            }
        }
    }
}

#[test]
fn equal_seeds_give_equal_figures_whatever_the_number_of_processors() {
    let workloads = [Workload::MultiType, Workload::LongShort, Workload::CommonParaSmall];
    let names: Vec<String> = workloads.iter().map(Workload::to_string).collect();
    let policies = QueuePolicy::all().collect();
    let batch = Batch { policies, reading: Reading::Code, first_seed: 5, seeds: 2 };
    let stream = |at: usize, seed| workloads[at].stream(seed, Reading::Code);
    let tallies = || run_batch(&names, &batch, stream).unwrap();
    let first = tallies();
    assert_eq!(first, tallies());
    let alone = Batch { first_seed: 6, seeds: 1, ..batch.clone() };
    let alone = run_batch(&names, &alone, stream).unwrap();
    assert!(first.iter().zip(&alone).all(|(both, one)| both.outcomes[1] == one.outcomes[0]));
    assert!(first.iter().any(|tally| tally.outcomes[0] != tally.outcomes[1]));
}

/// A stream with the given number of jobs of two lengths; the delay decides whether the workers keep up.
fn two_lengths(jobs: u32, delay_ms: impl Fn(u64) -> f64, seed: u64) -> Stream {
    let mut random = Random::new(seed);
    let (mut lines, mut at) = (String::new(), 0.0);
    for _ in 0..jobs {
        let (mean, deviation) = if random.below(5) == 0 { (10_000.0, 4_000.0) } else { (500.0, 200.0) };
        let duration = random::normal(&mut random, mean, deviation).max(100.0);
        writeln!(lines, "{{\"arrival_ms\": {at}, \"duration_ms\": {duration}}}").unwrap();
        at += random::exponential_ms(&mut random, delay_ms(whole(at))) as f64;
    }
    read_trace("two lengths", &lines, seed, Reading::Text).unwrap()
}

#[test]
fn a_million_jobs_on_a_thousand_workers_are_nothing() {
    // A twentieth of that here, to keep tests short; the full experiment is in docs/simulator.md. Load 1.1.
    let mut stream = two_lengths(50_000, |_| 2_400.0 / 1_100.0, 1);
    stream.workers = alike_workers(1000, &stream.requirements).unwrap();
    let begun = std::time::Instant::now();
    for policy in ["1/fcfs/-", "1/spt/oracle", "n/load/oracle", "n/load/imprecise", "n/rand2/oracle"] {
        starts(&stream, policy, Reading::Text);
    }
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
}
