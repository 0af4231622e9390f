//! Tests of the text that Prometheus reads.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::{Counter, Gauge, Histogram, Label, add, count, observe, render, set};

/// Parses the exposition: the types by family and the samples by full name.
fn parse(text: &str) -> (HashMap<String, String>, HashMap<String, String>) {
    let (mut types, mut helps, mut samples) = (HashMap::new(), HashSet::new(), HashMap::new());
    let body = text.strip_suffix("# EOF\n").expect("the end mark");
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(!help.is_empty() && helps.insert(name.to_owned()), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(helps.contains(name), "no help before {line}");
            types.insert(name.to_owned(), kind.to_owned());
        } else if !line.starts_with("# UNIT ") {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(samples.insert(name.to_owned(), value.to_owned()).is_none(), "twice: {line}");
        }
    }
    (types, samples)
}

fn any(labels: &[Label]) -> Vec<(Label, &'static str)> {
    labels.iter().map(|label| (*label, "any")).collect()
}

#[test]
fn every_metric_has_help_and_type_under_its_name() {
    let (_, untouched) = parse(&render());
    for counter in Counter::ALL {
        assert_eq!(counter.labels().is_empty(), untouched.contains_key(counter.name()));
        count(*counter, &any(counter.labels()), 0);
    }
    for gauge in Gauge::ALL {
        add(*gauge, &any(gauge.labels()), 0);
    }
    for histogram in Histogram::ALL {
        observe(*histogram, &any(histogram.labels()), Duration::from_secs(1_000_000));
    }
    let (types, _) = parse(&render());
    for counter in Counter::ALL {
        let family = counter.name().strip_suffix("_total").expect("counters end in _total");
        assert_eq!(types[family], "counter");
    }
    for gauge in Gauge::ALL {
        assert_eq!(types[gauge.name()], "gauge");
    }
    for histogram in Histogram::ALL {
        assert!(histogram.name().ends_with("_seconds"));
        assert_eq!(types[histogram.name()], "histogram");
    }
}

#[test]
fn what_is_counted_shows() {
    count(Counter::ActionsRun, &[(Label::Outcome, "succeeded")], 2);
    count(Counter::ActionsRun, &[(Label::Outcome, "succeeded")], 1);
    count(Counter::ApiRequests, &[(Label::Endpoint, "/v1/\"builds\""), (Label::Status, "200")], 1);
    set(Gauge::Workspaces, &[(Label::State, "idle")], 5);
    add(Gauge::Workspaces, &[(Label::State, "idle")], -2);
    observe(Histogram::ActionFetchSeconds, &[], Duration::from_millis(300));
    let (_, samples) = parse(&render());
    assert_eq!(samples["forebay_actions_run_total{outcome=\"succeeded\"}"], "3");
    let escaped = "forebay_api_requests_total{endpoint=\"/v1/\\\"builds\\\"\",status=\"200\"}";
    assert_eq!(samples[escaped], "1");
    assert_eq!(samples["forebay_workspaces{state=\"idle\"}"], "3");
    assert_eq!(samples["forebay_action_fetch_seconds_bucket{le=\"0.25\"}"], "0");
    assert_eq!(samples["forebay_action_fetch_seconds_bucket{le=\"0.5\"}"], "1");
    assert_ne!(samples["forebay_action_fetch_seconds_count"], "0");
}

#[test]
fn the_process_is_described() {
    let (types, samples) = parse(&render());
    for name in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_open_fds",
    ] {
        assert!(samples.contains_key(name), "{name}");
    }
    assert_eq!(types["process_cpu_seconds"], "counter");
    assert!(samples.keys().any(|name| name.starts_with("forebay_build_info{version=\"")));
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "labels given")]
fn wrong_labels_are_a_bug() {
    count(Counter::BuildsRejected, &[(Label::Outcome, "succeeded")], 1);
}

/// Not an assertion, a measurement: `cargo test -p telemetry cost -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn cost_of_counting() {
    const ROUNDS: u32 = 1_000_000;
    for labels in [&[][..], &[(Label::Outcome, "succeeded")][..]] {
        let counter = if labels.is_empty() { Counter::IndexApplied } else { Counter::ActionsRun };
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| count(counter, labels, 1));
        println!("{} labels: {:?} each", labels.len(), start.elapsed() / ROUNDS);
    }
}
