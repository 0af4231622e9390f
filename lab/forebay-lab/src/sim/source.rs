//! Sources of the streams that `forebay sim run` simulates.

use replay::Stream;
use simulate::queues::{Reading, Trace, Workload};

/// Source of the simulated streams.
pub(super) enum Source {
    Workload(Workload),
    Replayed(Box<Trace>),
}

impl Source {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Workload(workload) => workload.to_string(),
            Self::Replayed(trace) => trace.stream.name.clone(),
        }
    }

    /// Generates the stream for a seed.
    pub(super) fn stream(&self, seed: u64, reading: Reading) -> Stream {
        match self {
            Self::Workload(workload) => workload.stream(seed, reading),
            Self::Replayed(trace) => trace.for_seed(seed, reading),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_differs_between_seeds() {
        let lines = "{\"arrival_ms\": 0, \"duration_ms\": 100000}\n".repeat(20);
        let source = Source::Replayed(Box::new(Trace::read("week", &lines).unwrap()));
        let stream = |seed| source.stream(seed, Reading::Text);
        assert_eq!(stream(1), stream(1));
        assert_ne!(stream(1), stream(2));
    }
}
