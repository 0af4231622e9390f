//! Metrics that rules and dashboards use and that no service has yet. To implement one, declare it in
//! `shared/telemetry/src/metrics/names.rs`, count it, and remove its line here. Both lists are to become empty.

/// The kind of a metric, which decides the names of its series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Metrics that are missing, with their labels.
pub(crate) const PLANNED: [(&str, Kind, &[&str]); 0] = [];

/// Labels that existing metrics lack.
pub(crate) const PLANNED_LABELS: [(&str, &str); 0] = [];

/// Metrics that are declared and that no code counts.
pub(crate) const NEVER_COUNTED: [&str; 0] = [];
