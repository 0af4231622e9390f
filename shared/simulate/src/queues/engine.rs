//! The event loop in virtual time: arrivals, ends, and the starts that they cause.

mod classes;
mod each;
mod load_index;
mod one;
mod sorted;

use classes::Classes;
use each::Each;
use one::One;
use policy::queue::Levels;
use sorted::Sorted;

use super::{
    name::{Estimation, QueuePolicy, Reading},
    stream::{InvalidStream, Job, Stream},
};
use crate::events::Events;

/// Place and time of a job's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Start {
    /// Milliseconds since the beginning of the stream.
    pub start_ms: u64,
    /// Number of the worker, from 0.
    pub worker: u32,
}

/// Parameters of one run of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub policy: QueuePolicy,
    /// Which of the two experiments of the thesis to reproduce.
    pub reading: Reading,
    /// Seed for policies that draw random numbers.
    pub seed: u64,
}

/// A running policy. Jobs and workers are numbers.
trait Dispatch {
    /// Handles the arrival of a job and returns the worker that starts it at once, if any.
    fn arrive(&mut self, job: u32, now: u64) -> Option<u32>;
    /// Handles the end of a worker's job and returns the job that the worker starts next, if any.
    fn free(&mut self, worker: u32, now: u64) -> Option<u32>;
}

/// Runs `stream` through a queue and returns the start of each job, in the order of the stream.
pub fn run_queue(stream: &Stream, run: &Run) -> Result<Vec<Start>, InvalidStream> {
    let classes = Classes::of(stream)?;
    Ok(match (run.policy, run.reading) {
        (QueuePolicy::One(order, estimation), Reading::Text) => {
            drive(stream, run.reading, &mut One::new(stream, &classes, order, estimation))
        }
        (QueuePolicy::One(order, estimation), Reading::Code) => {
            drive(stream, run.reading, &mut Sorted::new(stream, &classes, order, estimation))
        }
        (QueuePolicy::Levels(estimation), _) => {
            drive(stream, run.reading, &mut One::new(stream, &classes, Levels::default(), estimation))
        }
        (QueuePolicy::Each(spread, estimation), _) => {
            drive(stream, run.reading, &mut Each::new(stream, &classes, (spread, estimation), run))
        }
    })
}

fn drive(stream: &Stream, reading: Reading, queues: &mut impl Dispatch) -> Vec<Start> {
    let mut starts = vec![Start::default(); stream.jobs.len()];
    // Rank among simultaneous ends, and worker.
    let mut ends: Events<(u32, u32)> = Events::new();
    let mut order = 0_u32;
    let mut start = |ends: &mut Events<(u32, u32)>, job: u32, worker: u32, now: u64| {
        let number = job as usize;
        let Some((job, start)) = stream.jobs.get(number).zip(starts.get_mut(number)) else {
            unreachable!("job {number} is not in the stream");
        };
        *start = Start { start_ms: now, worker };
        // Saturate: a hostile stream may contain jobs that overflow the clock.
        ends.push(now.saturating_add(job.duration_ms), (order, worker));
        // With the reading `text`, only the worker's number counts.
        order += match reading {
            Reading::Text => 0,
            Reading::Code => 1,
        };
    };
    let mut arrivals = (0_u32..).zip(&stream.jobs).peekable();
    loop {
        match (arrivals.peek(), ends.next_at()) {
            (Some((number, job)), end) if end.is_none_or(|end| job.arrival_ms <= end) => {
                if let Some(worker) = queues.arrive(*number, job.arrival_ms) {
                    start(&mut ends, *number, worker, job.arrival_ms);
                }
                arrivals.next();
            }
            (_, Some(now)) => {
                let Some((_, (_, worker))) = ends.pop() else {
                    unreachable!("the first end was read above");
                };
                if let Some(job) = queues.free(worker, now) {
                    start(&mut ends, job, worker, now);
                }
            }
            (_, None) => break,
        }
    }
    starts
}

impl Job {
    /// Duration that a policy assumes: milliseconds, or 1 where all jobs count as equally long.
    fn estimate(&self, estimation: Estimation) -> u64 {
        match estimation {
            Estimation::None | Estimation::QueueSize => 1,
            Estimation::Oracle => self.duration_ms,
            Estimation::Imprecise => self.estimate_ms,
        }
    }
}
