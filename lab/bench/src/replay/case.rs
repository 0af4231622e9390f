//! One replay of a stream.

use model::BandOrder;
use replay::Stream;

/// One replay, with a farm of its own.
pub(super) struct Case<'a> {
    /// The jobs and their workers.
    pub(super) stream: &'a Stream,
    /// Order of the jobs that wait.
    pub(super) order: BandOrder,
    /// Number of scheduler processes.
    pub(super) schedulers: u32,
    /// Seconds of the stream per second.
    pub(super) speed: f64,
}
