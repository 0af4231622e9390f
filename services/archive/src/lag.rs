//! How far the archive is behind a stream, as metrics.

use archive_store::LogStream;
use model::Millis;
use telemetry::metrics::{Gauge, Label, set};

/// Reports that the archive lacks `positions` messages of a stream; the last one that it has, or the first one that it
/// lacks, is from `at`.
pub(crate) fn report_lag(stream: LogStream, positions: u64, at: Millis, now: Millis) {
    let label = [(Label::Log, label(stream))];
    let seconds = if positions == 0 { 0 } else { now.since(at).as_secs() };
    set(Gauge::ArchiveLagPositions, &label, i64::try_from(positions).unwrap_or(i64::MAX));
    set(Gauge::ArchiveLagSeconds, &label, i64::try_from(seconds).unwrap_or(i64::MAX));
}

/// Name of a stream in metrics.
pub(crate) fn label(stream: LogStream) -> &'static str {
    match stream {
        LogStream::Events => "events",
        LogStream::Actions => "actions",
        LogStream::Bazel => "bazel",
        LogStream::Audit => "audit",
    }
}
