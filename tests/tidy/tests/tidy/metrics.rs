//! docs/metrics.md lists the metrics that services have.

use std::{collections::BTreeSet, fmt::Write as _};

use telemetry::metrics::{Counter, Gauge, Histogram, Label};
use tidy::{files, root};

use crate::planned::NEVER_COUNTED;

fn row(text: &mut String, name: &str, kind: &str, labels: &[Label], help: &str) {
    let labels: Vec<String> = labels.iter().map(|label| format!("`{}`", label.name())).collect();
    let _ = writeln!(text, "| `{name}` | {kind} | {} | {help} |", labels.join(", "));
}

/// The rows of the table, as they should be.
fn rows() -> BTreeSet<String> {
    let mut text = String::new();
    for it in Counter::ALL {
        row(&mut text, it.name(), "counter", it.labels(), it.help());
    }
    for it in Gauge::ALL {
        row(&mut text, it.name(), "gauge", it.labels(), it.help());
    }
    for it in Histogram::ALL {
        row(&mut text, it.name(), "histogram", it.labels(), it.help());
    }
    text.lines().map(ToOwned::to_owned).collect()
}

#[test]
fn the_document_lists_every_metric() {
    let path = root().join("docs/metrics.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let listed: BTreeSet<String> =
        text.lines().filter(|line| line.starts_with("| `forebay_")).map(ToOwned::to_owned).collect();
    let rows = rows();
    let (missing, wrong) = (rows.difference(&listed), listed.difference(&rows));
    let (missing, wrong) = (missing.cloned().collect::<Vec<_>>(), wrong.cloned().collect::<Vec<_>>());
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "docs/metrics.md lacks\n{}\nand has\n{}",
        missing.join("\n"),
        wrong.join("\n")
    );
}

#[test]
fn every_metric_is_counted_by_some_code() {
    let counters = Counter::ALL.iter().map(|it| format!("Counter::{it:?}"));
    let gauges = Gauge::ALL.iter().map(|it| format!("Gauge::{it:?}"));
    let histograms = Histogram::ALL.iter().map(|it| format!("Histogram::{it:?}"));
    let product =
        |path: &str| !path.starts_with("tests/") && !path.starts_with("shared/telemetry/src/metrics/");
    let sources: Vec<String> =
        files("rs").into_iter().filter(|file| product(&file.path)).map(|file| file.text).collect();
    let is_used = |name: &str| {
        sources
            .iter()
            .flat_map(|text| text.split(name).skip(1))
            .any(|rest| !rest.starts_with(char::is_alphanumeric))
    };
    let all = counters.chain(gauges).chain(histograms);
    let unused: BTreeSet<String> = all.filter(|name| !is_used(name)).collect();
    assert_eq!(unused, NEVER_COUNTED.map(ToOwned::to_owned).into(), "metrics that no code counts");
}
