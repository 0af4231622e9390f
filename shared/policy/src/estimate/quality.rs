//! Measures how good estimates were.

use std::collections::VecDeque;

/// Upper bounds of the classes of relative errors that a [`Tally`] counts; errors are negative where the estimate was
/// too low. Errors above the last bound have their own class.
pub const ERROR_BOUNDS: [f64; 14] =
    [-0.9, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0, 9.0];

/// Default number of estimates that count as the last ones.
const LAST: usize = 1000;

/// Quality of the estimates: of all, and of the last ones.
#[derive(Debug, Clone)]
pub struct Quality {
    all: Tally,
    last: Tally,
    /// Relative errors of the estimates counted in `last`.
    errors: VecDeque<f64>,
    most: usize,
}

/// Counts of estimates by quality. The relative error is `(estimate - truth) / truth` (section 3.4.2 of the thesis).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Number of estimates that were made.
    pub count: u64,
    /// Number of estimates that were off by less than 10 %.
    pub within_10: u64,
    /// Number of estimates that were off by less than 20 %.
    pub within_20: u64,
    /// Number of estimates that were too high.
    pub over: u64,
    /// Number of estimates that were too low.
    pub under: u64,
    /// Number of relative errors in each class: at most the bound in [`ERROR_BOUNDS`] and above the previous one; the
    /// last class is above all bounds.
    pub errors: [u64; ERROR_BOUNDS.len() + 1],
}

impl Default for Quality {
    fn default() -> Self {
        Self::new(LAST)
    }
}

impl Quality {
    /// Creates a measure without estimates; `last` is the number of estimates that count as the last ones.
    pub fn new(last: usize) -> Self {
        let (all, last, most) = (Tally::default(), Tally::default(), last.max(1));
        Self { all, last, errors: VecDeque::new(), most }
    }

    /// Adds an estimate and the actual duration, both in milliseconds. A duration of 0 counts as 1.
    pub fn observe(&mut self, estimated_ms: u64, took_ms: u64) {
        let took = took_ms.max(1) as f64;
        let error = (estimated_ms as f64 - took) / took;
        if self.errors.len() >= self.most
            && let Some(oldest) = self.errors.pop_front()
        {
            self.last.count(oldest, |count| count.saturating_sub(1));
        }
        self.errors.push_back(error);
        self.last.count(error, |count| count + 1);
        self.all.count(error, |count| count + 1);
    }

    /// Counts of all estimates since the beginning.
    pub fn all(&self) -> &Tally {
        &self.all
    }

    /// Counts of the last estimates.
    pub fn last(&self) -> &Tally {
        &self.last
    }
}

impl Tally {
    /// The share that was off by less than 10 %; `None` without estimates.
    pub fn share_within_10(&self) -> Option<f64> {
        self.share(self.within_10)
    }

    /// The share that was off by less than 20 %.
    pub fn share_within_20(&self) -> Option<f64> {
        self.share(self.within_20)
    }

    /// The share that was too high.
    pub fn share_over(&self) -> Option<f64> {
        self.share(self.over)
    }

    /// The share that was too low.
    pub fn share_under(&self) -> Option<f64> {
        self.share(self.under)
    }

    /// Number of relative errors above a bound, which must be one of [`ERROR_BOUNDS`].
    pub fn errors_above(&self, bound: f64) -> u64 {
        let classes = ERROR_BOUNDS.iter().copied().chain([f64::INFINITY]).zip(self.errors);
        classes.filter_map(|(upper, count)| (upper > bound).then_some(count)).sum()
    }

    fn share(&self, of: u64) -> Option<f64> {
        (self.count > 0).then(|| of as f64 / self.count as f64)
    }

    /// The sum of both counts.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.count += other.count;
        self.within_10 += other.within_10;
        self.within_20 += other.within_20;
        self.over += other.over;
        self.under += other.under;
        for (here, there) in self.errors.iter_mut().zip(other.errors) {
            *here += there;
        }
        self
    }

    /// Applies `change` to all counters of an estimate with this error.
    fn count(&mut self, error: f64, change: impl Fn(u64) -> u64) {
        let class = ERROR_BOUNDS.iter().position(|bound| error <= *bound).unwrap_or(ERROR_BOUNDS.len());
        let parts = [
            (&mut self.count, true),
            (&mut self.within_10, error.abs() < 0.1),
            (&mut self.within_20, error.abs() < 0.2),
            (&mut self.over, error > 0.0),
            (&mut self.under, error < 0.0),
        ];
        let counted = parts.into_iter().filter_map(|(number, is_so)| is_so.then_some(number));
        for number in counted.chain(self.errors.get_mut(class)) {
            *number = change(*number);
        }
    }
}
