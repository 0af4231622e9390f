//! Conversions between units of time and size.

use std::time::Duration;

const DAY_SECONDS: u64 = 24 * 3600;

pub(crate) fn days(days: u64) -> Duration {
    Duration::from_secs(days.saturating_mul(DAY_SECONDS))
}
