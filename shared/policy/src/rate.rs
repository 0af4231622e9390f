//! Token buckets: how often something may happen.

use std::{fmt, time::Duration};

use model::Millis;

/// Parts of a token in which levels are counted.
const PARTS: u64 = 1_000_000;

/// How many per second, and how many at once after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Thousandths per second; at least 1.
    milli_per_second: u64,
    burst: u64,
}

/// A rate that can never allow anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected 0.001 to 1e12 per second, and a burst of at least 1")]
pub struct InvalidRate;

impl Rate {
    /// `per_second` on average, and `burst` at once.
    ///
    /// # Errors
    ///
    /// Fails if it allows nothing, or more than can be counted.
    pub fn new(per_second: f64, burst: u64) -> Result<Self, InvalidRate> {
        // Not a number is not in the range.
        if !(0.001..=1e12).contains(&per_second) || burst == 0 {
            return Err(InvalidRate);
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
        let milli_per_second = (per_second * 1000.0) as u64;
        Ok(Self { milli_per_second: milli_per_second.max(1), burst })
    }

    /// A rate that is written in the program: whole numbers per second.
    pub const fn of(per_second: u32, burst: u32) -> Self {
        let per_second = if per_second == 0 { 1 } else { per_second as u64 * 1000 };
        Self { milli_per_second: per_second, burst: if burst == 0 { 1 } else { burst as u64 } }
    }

    /// Maximum number at once after a pause.
    pub fn burst(self) -> u64 {
        self.burst
    }

    fn capacity(self) -> u64 {
        self.burst.saturating_mul(PARTS)
    }

    /// Time in which this many parts of a token come in, rounded up to milliseconds.
    fn time_for(self, parts: u64) -> Duration {
        Duration::from_millis(parts.div_ceil(self.milli_per_second))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.milli_per_second / 1000, self.milli_per_second % 1000);
        let rest = if rest == 0 { String::new() } else { format!(".{rest:03}") };
        write!(f, "{whole}{} ({} at once)", rest.trim_end_matches('0'), self.burst)
    }
}

/// What is left of a rate at a moment. Full at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    /// Parts of tokens that were removed and have not come in again.
    missing: u64,
    at: Millis,
}

impl Bucket {
    /// Takes one token at `now`.
    ///
    /// # Errors
    ///
    /// Returns the time until there is one; nothing is removed.
    pub fn take(&mut self, rate: Rate, now: Millis) -> Result<(), Duration> {
        self.refill(rate, now);
        let after = self.missing.saturating_add(PARTS);
        if after > rate.capacity() {
            return Err(rate.time_for(after - rate.capacity()));
        }
        self.missing = after;
        Ok(())
    }

    /// Takes `count` tokens even if there are fewer. Returns the time after which no more are missing than the burst: zero if
    /// that is so now.
    pub fn spend(&mut self, rate: Rate, count: u64, now: Millis) -> Duration {
        self.refill(rate, now);
        self.missing = self.missing.saturating_add(count.saturating_mul(PARTS));
        rate.time_for(self.missing.saturating_sub(rate.capacity()))
    }

    /// Whether it is full at `now`, as if nothing had been removed.
    pub fn is_full(&self, rate: Rate, now: Millis) -> bool {
        let mut later = *self;
        later.refill(rate, now);
        later.missing == 0
    }

    /// A clock that goes back gives nothing, and takes nothing.
    fn refill(&mut self, rate: Rate, now: Millis) {
        let elapsed = now.0.saturating_sub(self.at.0);
        self.missing = self.missing.saturating_sub(elapsed.saturating_mul(rate.milli_per_second));
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rates_that_allow_nothing_are_refused() {
        for (per_second, burst) in [(0.0, 1), (-1.0, 1), (f64::NAN, 1), (f64::INFINITY, 1), (1.0, 0)] {
            assert_eq!(Rate::new(per_second, burst), Err(InvalidRate), "{per_second} {burst}");
        }
        assert_eq!(Rate::new(2.0, 5), Ok(Rate::of(2, 5)));
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let (rate, mut bucket) = (Rate::of(10, 3), Bucket::default());
        let at = |ms: u64| Millis(1_000_000 + ms);
        assert_eq!((0..5).filter(|_| bucket.take(rate, at(0)).is_ok()).count(), 3);
        assert_eq!(bucket.take(rate, at(40)), Err(Duration::from_millis(60)));
        assert_eq!(bucket.take(rate, at(100)), Ok(()));
        assert!(!bucket.is_full(rate, at(200)) && bucket.is_full(rate, at(500)));
    }

    proptest! {
        #[test]
        fn no_interval_has_more_than_the_burst_and_the_rate(
            per_second in 1..50_u32,
            burst in 1..20_u32,
            steps in proptest::collection::vec(0..200_u64, 1..200),
        ) {
            let (rate, mut bucket) = (Rate::of(per_second, burst), Bucket::default());
            let (mut now, mut passed) = (1_000_000_u64, Vec::new());
            for step in steps {
                now += step;
                if bucket.take(rate, Millis(now)).is_ok() {
                    passed.push(now);
                }
            }
            for (first, from) in passed.iter().enumerate() {
                for (last, to) in passed.iter().enumerate().skip(first) {
                    let most = u64::from(burst) * 1000 + (to - from) * u64::from(per_second);
                    prop_assert!((last - first + 1) as u64 * 1000 <= most);
                }
            }
        }

        #[test]
        fn after_the_time_that_was_named_there_is_a_token(
            per_second in 0.01..1e6_f64,
            burst in 1..5_u64,
            takes in 1..30_usize,
        ) {
            let rate = Rate::new(per_second, burst).unwrap();
            let (mut bucket, now) = (Bucket::default(), Millis(5000));
            let refused = (0..takes).find_map(|_| bucket.take(rate, now).err());
            if let Some(wait) = refused {
                let at = |wait: Duration| Millis(now.0 + u64::try_from(wait.as_millis()).unwrap());
                let mut early = bucket;
                prop_assert!(early.take(rate, at(wait.saturating_sub(Duration::from_millis(1)))).is_err());
                prop_assert!(bucket.take(rate, at(wait)).is_ok());
            }
        }

        #[test]
        fn what_was_spent_is_paid_back(count in 0..1_000_000_u64, burst in 1..1000_u64) {
            let rate = Rate::new(1000.0, burst).unwrap();
            let (mut bucket, now) = (Bucket::default(), Millis(5000));
            let wait = bucket.spend(rate, count, now);
            let owed = count.saturating_sub(burst);
            prop_assert_eq!(wait, Duration::from_millis(owed));
        }

        #[test]
        fn a_clock_that_goes_back_gives_nothing(back in 0..10_000_u64) {
            let (rate, mut bucket, now) = (Rate::of(1, 1), Bucket::default(), Millis(20_000));
            bucket.take(rate, now).unwrap();
            prop_assert!(bucket.take(rate, Millis(now.0 - back)).is_err());
            prop_assert!(bucket.take(rate, now).is_err());
        }
    }
}
