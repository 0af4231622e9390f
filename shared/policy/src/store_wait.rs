//! How long requests wait for the store.

use std::time::Duration;

/// Time limit of a call that carries no content. It ends before nats-server delivers the request again because it was
/// not acknowledged for 10 s.
const CALL: Duration = Duration::from_secs(8);
/// The first delay; each further delay is twice as long.
const DELAY_FIRST: Duration = Duration::from_millis(200);
const DELAY_MAX: Duration = Duration::from_secs(30);

/// Time limit of a call to the store that carries this many bytes of content: 8 s, and 1 s for each MiB.
pub fn store_time_limit(bytes: u64) -> Duration {
    CALL + Duration::from_secs(bytes >> 20)
}

/// Delay until a request is delivered again if the store does not answer; `deliveries` counts the deliveries so far.
pub fn store_retry_delay(deliveries: u64) -> Duration {
    let doublings = u32::try_from(deliveries.saturating_sub(1)).unwrap_or(u32::MAX);
    DELAY_FIRST.saturating_mul(2_u32.saturating_pow(doublings)).min(DELAY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest() {
        let delays = [0, 1, 2, 3, 8, 9, u64::MAX].map(|deliveries| store_retry_delay(deliveries).as_millis());
        assert_eq!(delays, [200, 200, 400, 800, 25_600, 30_000, 30_000]);
    }

    #[test]
    fn large_content_has_more_time() {
        let limits = [0, 1 << 19, 1 << 20, 64 << 20].map(|bytes| store_time_limit(bytes).as_secs());
        assert_eq!(limits, [8, 8, 9, 72]);
    }
}
