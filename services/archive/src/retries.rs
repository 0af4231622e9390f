//! When something is tried again after an error, and what is logged. Pure.

use std::time::Duration;

/// Delays between tries while the database, or the store, is away.
const DELAY_MIN: Duration = Duration::from_millis(200);
const DELAY_MAX: Duration = Duration::from_secs(10);
/// How long a session must write without an error to count as working. With a full disk, small transactions may still
/// succeed between those that fail.
pub(crate) const STEADY: Duration = Duration::from_secs(5);

/// Delays between tries, which grow.
#[derive(Debug)]
pub(crate) struct Delay(Duration);

impl Delay {
    pub(crate) fn new() -> Self {
        Self(DELAY_MIN)
    }

    /// How long to wait before the next try.
    pub(crate) fn next(&mut self) -> Duration {
        let delay = self.0;
        self.0 = (delay * 2).min(DELAY_MAX);
        delay
    }
}

/// Tries to write, with delays that grow until writing works.
#[derive(Debug)]
pub(crate) struct Retries {
    delay: Delay,
    broken: bool,
}

impl Retries {
    pub(crate) fn new() -> Self {
        Self { delay: Delay::new(), broken: false }
    }

    /// Whether writing failed since it worked last.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// A session works. Returns whether that is news.
    pub(crate) fn works(&mut self) -> bool {
        self.delay = Delay::new();
        std::mem::take(&mut self.broken)
    }

    /// A session failed. Returns whether that is news.
    pub(crate) fn failed(&mut self) -> bool {
        !std::mem::replace(&mut self.broken, true)
    }

    /// How long to wait before the next try.
    pub(crate) fn next_delay(&mut self) -> Duration {
        self.delay.next()
    }
}

#[cfg(test)]
mod tests {
    use super::{DELAY_MAX, DELAY_MIN, Retries};

    #[test]
    fn delays_grow_until_a_session_works_and_each_change_is_news_once() {
        let mut retries = Retries::new();
        assert!(!retries.works(), "it worked from the start");
        let mut news = 0;
        let delays: Vec<_> = (0..10)
            .map(|_| {
                news += u32::from(retries.failed());
                retries.next_delay()
            })
            .collect();
        assert_eq!((news, delays[0], delays[9]), (1, DELAY_MIN, DELAY_MAX));
        assert!(delays.is_sorted() && retries.is_broken());
        assert!(retries.works() && !retries.works());
        assert!(retries.failed());
        assert_eq!(retries.next_delay(), DELAY_MIN);
    }
}
