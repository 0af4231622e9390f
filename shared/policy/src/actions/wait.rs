//! Estimates when a waiting execution starts.

use std::time::Duration;

/// Expected time until an execution starts that has `ahead` executions before it, which run for `mean` on average, while
/// `running` executions run on the executors that can run it. `None` if nothing runs there: then no end frees a slot.
///
/// With equal run times, one execution ends each `mean / running`, and the first of these ends starts the first in the
/// queue (R31: the expected wait of section 3.2.1 of the thesis).
pub fn expected_wait(ahead: u64, running: u64, mean: Duration) -> Option<Duration> {
    let ends = ahead.saturating_add(1);
    (running > 0).then(|| mean.mul_f64((ends as f64 / running as f64).min(1e6)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_starts_when_those_before_it_have_started() {
        let wait = |ahead, running| expected_wait(ahead, running, Duration::from_secs(8));
        assert_eq!(wait(0, 4), Some(Duration::from_secs(2)));
        assert_eq!(wait(15, 4), Some(Duration::from_secs(32)));
        assert_eq!(wait(3, 0), None);
        assert!(wait(u64::MAX, 1).is_some_and(|wait| wait > Duration::from_secs(1_000_000)));
    }
}
