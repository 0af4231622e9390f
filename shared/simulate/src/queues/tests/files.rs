//! Streams and workers as files.

use super::*;

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
        (r#"{"arrival_ms": 4, "duration_ms": 1}"#, "the job before arrived at 5"),
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
    assert_eq!(said, "job 2 asks for env=rust gpu=1, which no worker has; on offer: env=c, java; no gpu");
    stream.workers.clear();
    assert_eq!(run_queue(&stream, &run), Err(InvalidStream::NoWorkers));
}

#[test]
fn a_bad_set_of_workers_is_refused() {
    assert!(read_workers("[]").unwrap_err().to_string().contains("names 0 workers"));
    assert!(read_workers(r#"[{"count": 4000000000}]"#).unwrap_err().to_string().contains("from 1 to"));
    assert!(read_workers(r#"{"a": 1}"#).unwrap_err().to_string().contains("expected is ["));
    assert!(read_workers(r#"[{"offer": {}}]"#).unwrap_err().to_string().contains("unknown field `offer`"));
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
