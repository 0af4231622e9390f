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
pub(crate) const PLANNED: [(&str, Kind, &[&str]); 36] = [
    ("forebay_bes_oldest_unacked_seconds", Kind::Gauge, &[]),
    ("forebay_build_preparation_seconds", Kind::Histogram, &["priority"]),
    ("forebay_build_request_bytes_total", Kind::Counter, &["priority"]),
    ("forebay_build_targets_total", Kind::Counter, &["priority"]),
    ("forebay_builds_oldest_wait_seconds", Kind::Gauge, &["priority"]),
    ("forebay_builds_waiting", Kind::Gauge, &["priority"]),
    ("forebay_bus_advisories_total", Kind::Counter, &["kind"]),
    ("forebay_bus_connected", Kind::Gauge, &[]),
    ("forebay_bus_publish_failures_total", Kind::Counter, &[]),
    ("forebay_bus_publish_seconds", Kind::Histogram, &[]),
    ("forebay_bus_slow_consumers_total", Kind::Counter, &[]),
    ("forebay_cas_bytes_max", Kind::Gauge, &[]),
    ("forebay_cas_evicted_bytes_total", Kind::Counter, &[]),
    ("forebay_cas_used_bytes", Kind::Gauge, &[]),
    ("forebay_consumer_ack_pending", Kind::Gauge, &["consumer"]),
    ("forebay_consumer_ack_pending_max", Kind::Gauge, &["consumer"]),
    ("forebay_consumer_oldest_seconds", Kind::Gauge, &["consumer"]),
    ("forebay_consumer_pending", Kind::Gauge, &["consumer"]),
    ("forebay_consumer_pulls", Kind::Gauge, &["consumer"]),
    ("forebay_consumer_redelivered", Kind::Gauge, &["consumer"]),
    ("forebay_disk_bytes", Kind::Gauge, &["disk"]),
    ("forebay_disk_free_bytes", Kind::Gauge, &["disk"]),
    ("forebay_executors", Kind::Gauge, &["state"]),
    ("forebay_index_call_failures_total", Kind::Counter, &["call"]),
    ("forebay_index_call_seconds", Kind::Histogram, &["call"]),
    ("forebay_quota_in_progress_milli_esu", Kind::Gauge, &["group", "type"]),
    ("forebay_quota_in_use_milli_esu", Kind::Gauge, &["group", "type"]),
    ("forebay_quota_milli_esu", Kind::Gauge, &["group", "type"]),
    ("forebay_quota_set_point_milli_esu", Kind::Gauge, &["group", "type"]),
    ("forebay_quota_target_milli_esu", Kind::Gauge, &["group", "type"]),
    ("forebay_quota_to_start_milli_esu", Kind::Gauge, &["group", "type"]),
    ("forebay_quota_waiting_milli_esu", Kind::Gauge, &["group", "type"]),
    ("forebay_stream_bytes", Kind::Gauge, &["stream"]),
    ("forebay_stream_bytes_max", Kind::Gauge, &["stream"]),
    ("forebay_stream_messages", Kind::Gauge, &["stream"]),
    ("forebay_workers", Kind::Gauge, &["state"]),
];

/// Labels that existing metrics lack.
pub(crate) const PLANNED_LABELS: [(&str, &str); 6] = [
    ("forebay_action_run_seconds", "priority"),
    ("forebay_build_run_seconds", "priority"),
    ("forebay_build_start_seconds", "priority"),
    ("forebay_builds_enqueued_total", "priority"),
    ("forebay_builds_finished_total", "priority"),
    ("forebay_execution_seconds", "priority"),
];

/// Metrics that are declared and that no code counts.
pub(crate) const NEVER_COUNTED: [&str; 1] = ["Counter::BusReconnects"];
