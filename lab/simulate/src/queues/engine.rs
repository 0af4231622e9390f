//! Runs a stream under a policy: one queue, or one for each worker.

mod each;
mod load_index;
mod sorted;

use each::Each;
use policy::queue::Levels;
use replay::{Classes, InvalidStream, Start, Stream, Ties, drive, one_queue};
use sorted::Sorted;

use super::name::{QueuePolicy, Reading};

/// Parameters of one run of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub policy: QueuePolicy,
    /// Which of the two experiments of the thesis to reproduce.
    pub reading: Reading,
    /// Seed for policies that draw random numbers.
    pub seed: u64,
}

/// Runs `stream` through a queue and returns the start of each job, in the order of the stream.
pub fn run_queue(stream: &Stream, run: &Run) -> Result<Vec<Start>, InvalidStream> {
    let ties = match run.reading {
        Reading::Text => Ties::ByWorker,
        Reading::Code => Ties::ByStart,
    };
    match (run.policy, run.reading) {
        (QueuePolicy::One(order, estimation), Reading::Text) => one_queue(stream, ties, order, estimation),
        (QueuePolicy::Levels(estimation), _) => one_queue(stream, ties, Levels::default(), estimation),
        (QueuePolicy::One(order, estimation), Reading::Code) => {
            let classes = Classes::of(stream)?;
            Ok(drive(stream, ties, &mut Sorted::new(stream, &classes, order, estimation)))
        }
        (QueuePolicy::Each(spread, estimation), _) => {
            let classes = Classes::of(stream)?;
            Ok(drive(stream, ties, &mut Each::new(stream, &classes, (spread, estimation), run)))
        }
    }
}
