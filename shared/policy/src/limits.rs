//! How much a caller may use of a gateway.

use std::{fmt, time::Duration};

use model::Millis;

use crate::rate::{Bucket, Rate};

/// How long a caller should wait for a watch or a connection to end: nothing says when one does.
const AGAIN: Duration = Duration::from_secs(5);

/// What a caller may use of each gateway; what is absent has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallerLimits {
    pub builds: Option<Rate>,
    pub calls: Option<Rate>,
    /// Bytes that it uploads; more arrive later.
    pub upload: Option<Rate>,
    /// Event streams and live pages that are open at once.
    pub watches: Option<u32>,
    /// Connections that are open at once.
    pub connections: Option<u32>,
}

/// Something of which a caller may have a limited number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limited {
    Builds,
    Calls,
    Watches,
    Connections,
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Builds => "builds per second",
            Self::Calls => "calls per second",
            Self::Watches => "open watches",
            Self::Connections => "open connections",
        })
    }
}

/// A caller has used up what it may use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the caller has too many {what}: its limit on each gateway is {limit}; try again in {} s", self.seconds())]
pub struct Exceeded {
    pub what: Limited,
    /// The limit as text: a number, or a rate with its burst.
    pub limit: String,
    /// After this time the same call may succeed.
    pub retry: Duration,
}

impl Exceeded {
    /// The time after which the same call may succeed, in whole seconds; at least 1.
    pub fn seconds(&self) -> u64 {
        u64::try_from(self.retry.as_millis().div_ceil(1000)).unwrap_or(u64::MAX).max(1)
    }
}

/// What a caller uses of a gateway now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallerUse {
    builds: Bucket,
    calls: Bucket,
    upload: Bucket,
    watches: u32,
    connections: u32,
}

impl CallerLimits {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl CallerUse {
    /// Counts a call of the caller.
    ///
    /// # Errors
    ///
    /// Fails if there are too many.
    pub fn call(&mut self, limits: &CallerLimits, now: Millis) -> Result<(), Exceeded> {
        take(&mut self.calls, limits.calls, Limited::Calls, now)
    }

    /// Counts a build that is submitted.
    ///
    /// # Errors
    ///
    /// Fails if there are too many.
    pub fn build(&mut self, limits: &CallerLimits, now: Millis) -> Result<(), Exceeded> {
        take(&mut self.builds, limits.builds, Limited::Builds, now)
    }

    /// Counts uploaded bytes. Returns for how long no more are accepted.
    pub fn upload(&mut self, limits: &CallerLimits, bytes: u64, now: Millis) -> Duration {
        limits.upload.map_or(Duration::ZERO, |rate| self.upload.spend(rate, bytes, now))
    }

    /// Counts an event stream or a live page, until [`Self::end_watch`].
    ///
    /// # Errors
    ///
    /// Fails if too many are open.
    pub fn begin_watch(&mut self, limits: &CallerLimits) -> Result<(), Exceeded> {
        begin(&mut self.watches, limits.watches, Limited::Watches)
    }

    /// One of the watches has ended.
    pub fn end_watch(&mut self) {
        self.watches = self.watches.saturating_sub(1);
    }

    /// Counts a connection, until [`Self::end_connection`].
    ///
    /// # Errors
    ///
    /// Fails if too many are open.
    pub fn begin_connection(&mut self, limits: &CallerLimits) -> Result<(), Exceeded> {
        begin(&mut self.connections, limits.connections, Limited::Connections)
    }

    /// One of the connections has ended.
    pub fn end_connection(&mut self) {
        self.connections = self.connections.saturating_sub(1);
    }

    /// Whether nothing is open and all rates are as if nothing had been used: then it can be forgotten.
    pub fn is_idle(&self, limits: &CallerLimits, now: Millis) -> bool {
        let full = |bucket: &Bucket, rate: Option<Rate>| rate.is_none_or(|rate| bucket.is_full(rate, now));
        self.watches == 0
            && self.connections == 0
            && full(&self.builds, limits.builds)
            && full(&self.calls, limits.calls)
            && full(&self.upload, limits.upload)
    }
}

fn take(bucket: &mut Bucket, rate: Option<Rate>, what: Limited, now: Millis) -> Result<(), Exceeded> {
    let Some(rate) = rate else { return Ok(()) };
    bucket.take(rate, now).map_err(|retry| Exceeded { what, limit: rate.to_string(), retry })
}

fn begin(open: &mut u32, most: Option<u32>, what: Limited) -> Result<(), Exceeded> {
    match most {
        Some(most) if *open >= most => Err(Exceeded { what, limit: most.to_string(), retry: AGAIN }),
        Some(_) | None => {
            *open = open.saturating_add(1);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn without_limits_nothing_is_refused() {
        let (limits, mut used, now) = (CallerLimits::default(), CallerUse::default(), Millis(5000));
        for _ in 0..10_000 {
            assert_eq!(used.call(&limits, now), Ok(()));
            assert_eq!(used.build(&limits, now), Ok(()));
            assert_eq!(used.begin_watch(&limits), Ok(()));
            assert_eq!(used.upload(&limits, u64::MAX, now), Duration::ZERO);
        }
    }

    #[test]
    fn a_refusal_says_the_limit_and_how_long_to_wait() {
        let limits = CallerLimits { builds: Some(Rate::of(2, 3)), ..CallerLimits::default() };
        let mut used = CallerUse::default();
        let refused = (0..9).find_map(|_| used.build(&limits, Millis(5000)).err()).unwrap();
        assert_eq!((refused.retry, refused.seconds()), (Duration::from_millis(500), 1));
        assert_eq!(
            refused.to_string(),
            "the caller has too many builds per second: its limit on each gateway is 2 (3 at once); try again in 1 s"
        );
        // What has one limit does not use up another.
        assert_eq!(used.call(&limits, Millis(5000)), Ok(()));
    }

    proptest! {
        #[test]
        fn never_more_are_open_than_allowed(
            most in 0..5_u32,
            steps in proptest::collection::vec(any::<(bool, bool)>(), 0..100),
        ) {
            let limits =
                CallerLimits { watches: Some(most), connections: Some(most), ..CallerLimits::default() };
            let (mut used, mut open) = (CallerUse::default(), [0_u32; 2]);
            for (is_watch, begins) in steps {
                let open = &mut open[usize::from(is_watch)];
                match (is_watch, begins) {
                    (true, true) => *open += u32::from(used.begin_watch(&limits).is_ok()),
                    (false, true) => *open += u32::from(used.begin_connection(&limits).is_ok()),
                    (_, false) if *open == 0 => {}
                    (true, false) => {
                        used.end_watch();
                        *open -= 1;
                    }
                    (false, false) => {
                        used.end_connection();
                        *open -= 1;
                    }
                }
                prop_assert!(*open <= most);
            }
            prop_assert_eq!(used.is_idle(&limits, Millis(1)), open == [0, 0]);
        }

        #[test]
        fn a_caller_that_waits_as_it_is_asked_to_is_served(per_second in 1..100_u32, burst in 1..10_u32) {
            let limits = CallerLimits { calls: Some(Rate::of(per_second, burst)), ..CallerLimits::default() };
            let (mut used, mut now) = (CallerUse::default(), 1_000_000);
            for _ in 0..50 {
                if let Err(refused) = used.call(&limits, Millis(now)) {
                    now += u64::try_from(refused.retry.as_millis()).unwrap();
                    prop_assert_eq!(used.call(&limits, Millis(now)), Ok(()));
                }
            }
        }
    }
}
