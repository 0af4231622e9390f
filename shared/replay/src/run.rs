//! The event loop in virtual time: arrivals, ends, and the starts that they cause.

use crate::{events::Events, stream::Stream};

/// Place and time of a job's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Start {
    /// Milliseconds since the beginning of the stream.
    pub start_ms: u64,
    /// Number of the worker, from 0.
    pub worker: u32,
}

/// A running policy. Jobs and workers are numbers.
pub trait Dispatch {
    /// Handles the arrival of a job and returns the worker that starts it at once, if any.
    fn arrive(&mut self, job: u32, now: u64) -> Option<u32>;
    /// Handles the end of a worker's job and returns the job that the worker starts next, if any.
    fn free(&mut self, worker: u32, now: u64) -> Option<u32>;
}

/// The order of ends at the same instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ties {
    /// By the number of the worker.
    ByWorker,
    /// By the order in which the jobs started.
    ByStart,
}

/// Runs `stream` through `queues` and returns the start of each job, in the order of the stream.
pub fn drive(stream: &Stream, ties: Ties, queues: &mut impl Dispatch) -> Vec<Start> {
    let mut starts = vec![Start::default(); stream.jobs.len()];
    // Rank among simultaneous ends, and worker.
    let mut ends: Events<(u32, u32)> = Events::default();
    let mut order = 0_u32;
    let mut start = |ends: &mut Events<(u32, u32)>, job: u32, worker: u32, now: u64| {
        let number = job as usize;
        let Some((job, start)) = stream.jobs.get(number).zip(starts.get_mut(number)) else {
            unreachable!("job {number} is not in the stream");
        };
        *start = Start { start_ms: now, worker };
        // Saturate: a hostile stream may contain jobs that overflow the clock.
        ends.push(now.saturating_add(job.duration_ms), (order, worker));
        order += match ties {
            Ties::ByWorker => 0,
            Ties::ByStart => 1,
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
