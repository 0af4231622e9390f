//! Whether the queue of a group takes another build.

use std::time::Duration;

use model::{Millis, Priority};

use crate::rate::{Bucket, Rate};

/// Age of a measurement after which it says nothing: the index is away, and a queue that is not known is not full.
const STALE_MS: u64 = 5000;
/// Seconds to wait if no build starts.
const WAIT_SECONDS: u64 = 60;
const WAIT_SECONDS_MAX: u64 = 3600;
const HOUR: Duration = Duration::from_secs(3600);

/// The length of a queue, as an enqueuer knows it: measured now and then, plus what it added since.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct QueueLength {
    measured: Option<Measured>,
    /// Builds that this process added since the measurement began.
    added: u64,
    /// Builds that start in a second, of late.
    starts_per_second: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Measured {
    waiting: u64,
    at: Millis,
}

/// A queue that is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    pub waiting: u64,
    pub most: u64,
    /// Seconds after which there may be room; at least 1.
    pub retry_seconds: u64,
}

impl QueueLength {
    /// Whether the queue takes another build, if it may have `most`; 0: any number. An emergency is accepted until there are twice
    /// as many: it must not be refused because of others that wait.
    ///
    /// # Errors
    ///
    /// Says how full it is.
    pub fn check(&self, most: u64, priority: Priority, now: Millis) -> Result<(), Full> {
        let Some(measured) = self.measured.filter(|known| now.0.saturating_sub(known.at.0) <= STALE_MS)
        else {
            return Ok(());
        };
        let waiting = measured.waiting.saturating_add(self.added);
        let own = if priority.is_emergency() { most.saturating_mul(2) } else { most };
        if most == 0 || waiting < own {
            return Ok(());
        }
        let retry_seconds = self.seconds_for((waiting - own).saturating_add(1));
        Err(Full { waiting, most: own, retry_seconds })
    }

    /// Counts a build that was added.
    pub fn add(&mut self) {
        self.added = self.added.saturating_add(1);
    }

    /// Builds that were added since the last measurement; what [`Self::measure`] needs when the next one is done.
    pub fn added(&self) -> u64 {
        self.added
    }

    /// Notes a measurement, before which `added` builds of this process had been added.
    pub fn measure(&mut self, waiting: u64, added: u64, now: Millis) {
        if let Some(before) = self.measured {
            let seconds = now.0.saturating_sub(before.at.0) as f64 / 1000.0;
            let gone = before.waiting.saturating_add(added).saturating_sub(waiting) as f64;
            if seconds > 0.0 {
                self.starts_per_second = 0.7 * self.starts_per_second + 0.3 * gone / seconds;
            }
        }
        self.measured = Some(Measured { waiting, at: now });
        self.added = self.added.saturating_sub(added);
    }

    /// Whether the queue may soon be full, so that it is measured also while nothing is added.
    pub fn is_filling(&self, most: u64) -> bool {
        let waiting = self.measured.map_or(0, |measured| measured.waiting).saturating_add(self.added);
        most > 0 && waiting >= most / 2
    }

    fn seconds_for(&self, builds: u64) -> u64 {
        if self.starts_per_second < 0.01 {
            return WAIT_SECONDS;
        }
        let seconds = (builds as f64 / self.starts_per_second).ceil();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
        let seconds = seconds as u64;
        seconds.clamp(1, WAIT_SECONDS_MAX)
    }
}

/// How many bytes a group adds to the log of builds, which keeps them longer than the builds wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogGrowth(Bucket);

impl LogGrowth {
    /// Whether a group that may add `mib_per_hour`, also all at once, may add another build; if not, fails with the seconds after
    /// which it may, at least 1. With 0 there is no limit. Emergencies may add twice as much.
    pub fn check(&mut self, mib_per_hour: u64, priority: Priority, now: Millis) -> Result<(), u64> {
        let wait = rate_of(mib_per_hour).map_or(Duration::ZERO, |rate| self.0.spend(rate, 0, now));
        let wait = wait.saturating_sub(if priority.is_emergency() { HOUR } else { Duration::ZERO });
        if wait.is_zero() { Ok(()) } else { Err(wait.as_secs().saturating_add(1)) }
    }

    /// Counts the bytes of a build that was added.
    pub fn add(&mut self, mib_per_hour: u64, bytes: usize, now: Millis) {
        if let Some(rate) = rate_of(mib_per_hour) {
            self.0.spend(rate, u64::try_from(bytes).unwrap_or(u64::MAX), now);
        }
    }

    /// Whether the limit allows the full amount of an hour now, as for a new group.
    pub fn is_new(&self, mib_per_hour: u64, now: Millis) -> bool {
        rate_of(mib_per_hour).is_none_or(|rate| self.0.is_full(rate, now))
    }
}

/// The rate in bytes; `None` if it is not limited.
fn rate_of(mib_per_hour: u64) -> Option<Rate> {
    let bytes = mib_per_hour.checked_mul(1 << 20)?;
    Rate::new(bytes as f64 / 3600.0, bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Millis {
        Millis(1_000_000 + ms)
    }

    #[test]
    fn a_group_adds_so_many_bytes_in_an_hour() {
        let mut growth = LogGrowth::default();
        let mut add = |mib: usize, ms: u64| {
            let checked = growth.check(10, Priority::Batch, at(ms));
            if checked.is_ok() {
                growth.add(10, mib << 20, at(ms));
            }
            checked
        };
        assert_eq!((add(8, 0), add(8, 0)), (Ok(()), Ok(())));
        let seconds = add(1, 0).unwrap_err();
        assert!((6 * 360..6 * 360 + 2).contains(&seconds), "6 of 10 MiB too much: {seconds} s");
        assert_eq!(add(1, seconds * 1000), Ok(()));
        let all: Vec<_> = (1..10).map(|ms| growth.check(10, Priority::Emergency, at(ms))).collect();
        assert!(all.iter().all(Result::is_ok) && growth.check(10, Priority::Batch, at(10)).is_err());
        assert_eq!(growth.check(0, Priority::Batch, at(0)), Ok(()));
        assert!(!growth.is_new(10, at(0)) && growth.is_new(10, at(10_000_000)));
    }

    #[test]
    fn a_full_queue_takes_emergencies_only() {
        let mut length = QueueLength::default();
        // What is not known is not full.
        assert!(length.check(1, Priority::Batch, at(0)).is_ok());
        length.measure(10, 0, at(0));
        assert!(length.check(11, Priority::Batch, at(0)).is_ok());
        let full = length.check(10, Priority::Interactive, at(0)).unwrap_err();
        assert_eq!(full, Full { waiting: 10, most: 10, retry_seconds: WAIT_SECONDS });
        assert!(length.check(10, Priority::Emergency, at(0)).is_ok());
        assert!(length.check(5, Priority::Emergency, at(0)).is_err());
        assert!(length.check(0, Priority::Batch, at(0)).is_ok());
        assert!(length.check(10, Priority::Batch, at(STALE_MS + 1)).is_ok());
    }

    #[test]
    fn the_time_to_wait_follows_from_the_builds_that_start() {
        let mut length = QueueLength::default();
        for second in 0..30 {
            length.measure(1000 - second * 10, 0, at(second * 1000));
        }
        let full = length.check(500, Priority::Batch, at(29_000)).unwrap_err();
        assert_eq!((full.waiting, full.retry_seconds), (710, 22));
    }

    proptest! {
        #[test]
        fn between_two_measurements_no_more_are_added_than_fit(
            waiting in 0..100_u64,
            most in 1..100_u64,
            tries in 0..300_u64,
        ) {
            let mut length = QueueLength::default();
            length.measure(waiting, 0, at(0));
            let mut added = 0;
            for _ in 0..tries {
                if length.check(most, Priority::Batch, at(10)).is_ok() {
                    length.add();
                    added += 1;
                }
            }
            prop_assert_eq!(added, tries.min(most.saturating_sub(waiting)));
            // The measurement counts them; nothing is counted twice.
            let before = length.added();
            length.measure(waiting + added, before, at(20));
            prop_assert_eq!(length.check(most, Priority::Batch, at(20)).is_ok(), waiting + added < most);
        }
    }
}
