//! docs/metrics.md lists the metrics that services have.

use std::{collections::BTreeSet, fmt::Write as _};

use telemetry::metrics::{Counter, Gauge, Histogram, Label};
use tidy::root;

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
