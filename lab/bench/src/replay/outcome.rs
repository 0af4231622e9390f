//! How long the jobs of a stream waited.

/// The waits of a stream's jobs, and when the last one ended, in milliseconds of the stream.
pub(super) struct Outcome {
    /// The wait of each job, in the order of the stream.
    pub(super) waits_ms: Vec<f64>,
    /// From the beginning until the last job ended.
    pub(super) makespan_ms: f64,
}
