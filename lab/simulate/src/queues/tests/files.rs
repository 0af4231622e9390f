//! Streams and workers in files.

use super::*;
use crate::{plot_lateness, plot_makespans, plot_waits};

#[test]
fn what_is_written_is_read_again() {
    for reading in Reading::ALL {
        let stream = Workload::MultiType.stream(4, reading);
        let mut again = read_trace("multi_type", &write_trace(&stream), 99, reading).unwrap();
        again.workers = read_workers(&write_workers(&stream.workers)).unwrap();
        assert_eq!(again, stream);
    }
}

#[test]
fn a_line_of_a_dump_says_what_an_independent_simulator_needs() {
    let text = write_trace(&Workload::CommonParaSmall.stream(1, Reading::Text));
    let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(line["arrival_ms"], 0);
    assert!(line["duration_ms"].is_u64() && line["estimate_ms"].is_u64());
    assert!(["common_medium", "parallel"].contains(&line["type"].as_str().unwrap()));
    assert_eq!(line["requirements"]["env"], "c");
}

#[test]
fn recorded_traffic_with_further_fields_and_without_estimates_is_read() {
    let line = r#"{"arrival_ms": 0, "duration_ms": 12.6, "type": "make", "group": "ci", "submitter": "me", "labels": {"a": "b"},
        "limit_ms": 5000, "priority": "batch", "requirements": {"threads": 4}}"#;
    let stream = read_trace("week", &line.replace('\n', " "), 1, Reading::Text).unwrap();
    assert_eq!(stream.jobs[0].duration_ms, 13);
    assert_eq!(stream.requirements[0]["threads"], "4");
}

#[test]
fn a_bad_line_is_refused_with_its_number() {
    let good = r#"{"arrival_ms": 5, "duration_ms": 1}"#;
    for (bad, said) in [
        (r#"{"arrival_ms": 5, "duration_ms": NaN}"#, "expected value"),
        (r#"{"arrival_ms": 5, "duration_ms": "NaN"}"#, "invalid type: string"),
        (r#"{"arrival_ms": 5, "duration_ms": null}"#, "invalid type: null"),
        (r#"{"arrival_ms": 5, "duration_ms": -1}"#, "duration_ms is -1, but must be from 0"),
        (r#"{"arrival_ms": 5, "duration_ms": 1e300}"#, "duration_ms is"),
        (r#"{"arrival_ms": 5, "duration_ms": 1e999}"#, "number out of range"),
        (r#"{"arrival_ms": -5, "duration_ms": 1}"#, "arrival_ms is -5"),
        (r#"{"arrival_ms": 4, "duration_ms": 1}"#, "the previous job arrived at 5"),
        (r#"{"arrival_ms": 5, "duration_ms": 1, "estimate_ms": -3}"#, "estimate_ms is -3"),
        (r#"{"arrival_ms": 5}"#, "missing field `duration_ms`"),
        (r#"{"duration_ms": 5}"#, "missing field `arrival_ms`"),
        (r#"{"arrival_ms": 5, "duration_ms": 1, "priority": "soon"}"#, "soon"),
        ("5 1", "invalid type: integer"),
        ("[]", "invalid"),
        ("{", "EOF"),
    ] {
        let error = read_trace("t", &format!("{good}\n\n{bad}\n"), 1, Reading::Text).unwrap_err().to_string();
        assert!(error.starts_with("line 3: ") && error.contains(said), "{bad}: {error}");
    }
    assert_eq!(read_trace("t", "\n", 1, Reading::Text), Err(InvalidTrace::Empty));
}

#[test]
fn a_job_that_nobody_can_run_is_refused_with_what_is_on_offer() {
    let lines = r#"{"arrival_ms": 0, "duration_ms": 1, "requirements": {"env": "c"}}
        {"arrival_ms": 0, "duration_ms": 1, "requirements": {"env": "rust", "gpu": "1"}}"#;
    let mut stream = stream(lines, 1);
    stream.workers = read_workers(r#"[{"offers": {"env": ["c", "java"]}}]"#).unwrap();
    let run = Run { policy: "1/fcfs/-".parse().unwrap(), reading: Reading::Text, seed: 1 };
    let said = run_queue(&stream, &run).unwrap_err().to_string();
    assert_eq!(said, "job 2 requires env=rust gpu=1, which no worker offers; on offer: env=c, java; no gpu");
    stream.workers.clear();
    assert_eq!(run_queue(&stream, &run), Err(InvalidStream::NoWorkers));
}

#[test]
fn a_bad_set_of_workers_is_refused() {
    assert!(read_workers("[]").unwrap_err().to_string().contains("workers 0: expected"));
    assert!(read_workers(r#"[{"count": 4000000000}]"#).unwrap_err().to_string().contains("expected 1 to"));
    assert!(read_workers(r#"{"a": 1}"#).unwrap_err().to_string().contains("expected ["));
    assert!(read_workers(r#"[{"offer": {}}]"#).unwrap_err().to_string().contains("unknown field `offer`"));
}

#[test]
fn so_many_workers_that_are_alike_are_bounded_as_a_file_is() {
    assert_eq!(alike_workers(3, &[]).unwrap().len(), 3);
    for count in [0, 1_000_001, 4_000_000_000] {
        let said = alike_workers(count, &[]).unwrap_err().to_string();
        assert_eq!(said, format!("invalid number of workers {count}: expected 1 to 1000000"));
    }
}

#[test]
fn estimates_that_a_stream_does_not_tell_are_drawn_for_each_seed() {
    let lines = "{\"arrival_ms\": 0, \"duration_ms\": 100000}\n".repeat(20)
        + r#"{"arrival_ms": 0, "duration_ms": 100000, "estimate_ms": 7}"#;
    let trace = Trace::read("t", &lines).unwrap();
    let estimates = |seed| -> Vec<u64> {
        trace.for_seed(seed, Reading::Text).jobs.iter().map(|job| job.estimate_ms).collect()
    };
    assert_eq!(estimates(1), estimates(1));
    assert_ne!(estimates(1), estimates(2));
    assert_eq!((estimates(1)[20], estimates(2)[20]), (7, 7), "a given estimate stays");
    assert_eq!(read_trace("t", &lines, 2, Reading::Text).unwrap(), trace.for_seed(2, Reading::Text));
}

#[test]
fn a_recorded_build_without_an_estimate_is_taken_for_what_the_dispatcher_takes_it_for() {
    for (line, estimate_ms) in [
        (r#"{"arrival_ms": 0, "duration_ms": 5, "waited_ms": 3}"#, 60_000),
        (r#"{"arrival_ms": 0, "duration_ms": 5, "outcome": "succeeded"}"#, 60_000),
        (r#"{"arrival_ms": 0, "duration_ms": 5, "waited_ms": 3, "outcome": "failed", "estimate_ms": 8}"#, 8),
    ] {
        for seed in [1, 2] {
            let stream = read_trace("t", line, seed, Reading::Text).unwrap();
            assert_eq!(stream.jobs[0].estimate_ms, estimate_ms, "{line}");
        }
    }
    // So it starts after all jobs that are known to be shorter, however short it is.
    let lines = r#"{"arrival_ms": 0, "duration_ms": 100, "outcome": "succeeded"}
        {"arrival_ms": 1, "duration_ms": 5, "outcome": "succeeded"}
        {"arrival_ms": 2, "duration_ms": 50, "outcome": "succeeded", "estimate_ms": 59000}"#;
    let starts = starts(&stream(lines, 1), "1/spt/imprecise", Reading::Text);
    assert_eq!(starts.iter().map(|start| start.start_ms).collect::<Vec<_>>(), [0, 150, 100]);
}

#[test]
fn a_stream_that_is_longer_than_time_can_be_counted_still_comes_to_its_end() {
    // A clock close to overflow, and estimates of which three overflow a number.
    let job = Job {
        arrival_ms: 0,
        duration_ms: 10_000_000_000_000,
        estimate_ms: u64::MAX / 2,
        priority: model::Priority::default(),
        requirements: 0,
        kind: 0,
    };
    let jobs = vec![Job { arrival_ms: u64::MAX - 20_000_000_000_000, ..job }; 400];
    let requirements = vec![std::collections::BTreeMap::new()];
    let workers = alike_workers(2, &[]).unwrap();
    let stream = Stream { jobs, requirements, workers, ..Stream::default() };
    for policy in QueuePolicy::all() {
        for reading in Reading::ALL {
            let starts = starts(&stream, &policy.to_string(), reading);
            assert!(starts.iter().all(|start| start.start_ms >= stream.jobs[0].arrival_ms), "{policy}");
            assert_eq!(outcome(&stream, &starts).makespan_ms, u64::MAX, "{policy}");
        }
    }
}

#[test]
fn pictures_show_every_policy_and_are_whole() {
    let names = ["long+short".to_owned(), "a<b".to_owned()];
    let batch =
        Batch { policies: QueuePolicy::THESIS.to_vec(), reading: Reading::Text, first_seed: 1, seeds: 2 };
    let tallies =
        run_batch(&names, &batch, |_, seed| Workload::LongShort.stream(seed, Reading::Text)).unwrap();
    let second: Vec<&Tally> = tallies.iter().filter(|tally| tally.workload == "a<b").collect();
    for svg in [plot_lateness(&second), plot_waits(&second), plot_makespans(&tallies)] {
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a&lt;b") && !svg.contains("NaN") && !svg.contains("inf"));
        assert!(QueuePolicy::THESIS.iter().all(|policy| svg.contains(&policy.to_string())));
    }
}
