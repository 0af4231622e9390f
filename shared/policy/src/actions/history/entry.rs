//! The history of one key.

use std::{collections::VecDeque, time::Duration};

use model::Measured;

/// Number of last runs remembered per key.
pub(super) const RUNS: usize = 32;
/// Number of runs out of memory remembered per key.
pub(super) const RAN_OUT: usize = 8;
/// Minimum wall time in milliseconds used to compute the share of a processor, because systems count processor time in
/// steps of that length.
const SHORTEST: u64 = 10;

/// One run that ended with success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    /// Wall time in milliseconds.
    pub(super) wall_ms: u32,
    /// Thousandths of a processor on average.
    pub(super) cpu_millis: u32,
    /// Peak memory in bytes; 0 if it was not measured.
    pub(super) memory_bytes: u64,
}

impl Sample {
    pub(super) fn of(measured: &Measured) -> Self {
        let cpu_millis = measured.cpu_ms.saturating_mul(1000).div_ceil(measured.wall_ms.max(SHORTEST));
        Self {
            wall_ms: u32::try_from(measured.wall_ms).unwrap_or(u32::MAX),
            cpu_millis: u32::try_from(cpu_millis).unwrap_or(u32::MAX),
            memory_bytes: measured.memory_bytes,
        }
    }
}

/// The runs of one key.
#[derive(Debug, Clone, Default)]
pub(super) struct Entry {
    /// The last runs, from the oldest.
    pub(super) samples: VecDeque<Sample>,
    /// Memory of the runs that ran out of it and for which no success has shown yet how much they need.
    pub(super) ran_out: VecDeque<u64>,
}

impl Entry {
    /// Adds a run. If it used more memory than a run that ran out had, it is assumed to be that action: its
    /// need is known now.
    pub(super) fn ran(&mut self, sample: Sample) {
        push(&mut self.samples, sample, RUNS);
        if let Some(at) = self.ran_out.iter().position(|had| sample.memory_bytes > *had) {
            self.ran_out.remove(at);
        }
    }

    pub(super) fn ran_out(&mut self, had: u64) {
        push(&mut self.ran_out, had, RAN_OUT);
    }

    pub(super) fn runs(&self) -> usize {
        self.samples.len()
    }

    /// The largest amount of memory that a run ran out of.
    pub(super) fn ran_out_of(&self) -> Option<u64> {
        self.ran_out.iter().copied().max()
    }

    /// The peak that `percent` of the runs with a known peak did not exceed.
    pub(super) fn memory_bytes(&self, percent: usize) -> Option<u64> {
        let mut sorted: Vec<u64> = self.samples.iter().map(|sample| sample.memory_bytes).collect();
        sorted.retain(|bytes| *bytes > 0);
        sorted.sort_unstable();
        sorted.get(rank(sorted.len(), percent).checked_sub(1)?).copied()
    }

    /// Processor use that `percent` of the runs did not exceed; of three or more runs never the largest, which
    /// may be an outlier.
    pub(super) fn cpu_millis(&self, percent: usize) -> Option<u64> {
        let mut sorted: Vec<u32> = self.samples.iter().map(|sample| sample.cpu_millis).collect();
        sorted.sort_unstable();
        let most = if sorted.len() < 3 { sorted.len() } else { sorted.len() - 1 };
        sorted.get(rank(sorted.len(), percent).min(most).checked_sub(1)?).copied().map(u64::from)
    }

    /// Wall time that `percent` of the runs did not exceed.
    pub(super) fn wall(&self, percent: usize) -> Option<Duration> {
        let mut sorted: Vec<u32> = self.samples.iter().map(|sample| sample.wall_ms).collect();
        sorted.sort_unstable();
        let at = rank(sorted.len(), percent).checked_sub(1)?;
        sorted.get(at).map(|millis| Duration::from_millis(u64::from(*millis)))
    }
}

/// The nearest rank, from 1, of the `percent` percentile of `count` values.
fn rank(count: usize, percent: usize) -> usize {
    (count * percent).div_ceil(100)
}

fn push<T>(ring: &mut VecDeque<T>, item: T, most: usize) {
    while ring.len() >= most {
        ring.pop_front();
    }
    ring.push_back(item);
}
