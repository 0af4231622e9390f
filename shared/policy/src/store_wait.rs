//! How long requests wait for the store.

use std::time::Duration;

/// Time limit of a call that carries no content. It ends before nats-server delivers the request again because it was
/// not acknowledged for 10 s.
const CALL: Duration = Duration::from_secs(8);
/// Time without progress after which a store that is given files counts as not answering; less when the wait for it
/// is about to end.
const STALL: Duration = Duration::from_secs(20);
const STALL_MIN: Duration = Duration::from_secs(5);
/// Bytes of a file that a store verifies or passes on in one second after the last byte has arrived, at least.
const RATE: u64 = 8 << 20;
/// The first delay; each further delay is twice as long.
const DELAY_FIRST: Duration = Duration::from_millis(200);
const DELAY_MAX: Duration = Duration::from_secs(30);

/// Time limit of a call to the store that carries this many bytes of content: 8 s, and 1 s for each MiB.
pub fn store_time_limit(bytes: u64) -> Duration {
    CALL + Duration::from_secs(bytes >> 20)
}

/// Time without progress after which a store that is given files counts as not answering. `largest` is the size of the
/// largest file in bytes, `left` what is left of a wait for the store that has begun.
pub fn store_stall_limit(largest: u64, left: Option<Duration>) -> Duration {
    let stall = left.map_or(STALL, |left| left.clamp(STALL_MIN, STALL));
    stall + Duration::from_secs(largest / RATE)
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
    fn a_store_that_stalls_is_given_up_sooner_at_the_end_of_the_wait_and_later_with_a_large_file() {
        let seconds = Duration::from_secs;
        let limits = [None, Some(29), Some(8), Some(0)].map(|left| store_stall_limit(0, left.map(seconds)));
        assert_eq!(limits, [20, 20, 8, 5].map(seconds));
        assert_eq!(store_stall_limit(1 << 30, None), seconds(148));
    }

    #[test]
    fn large_content_has_more_time() {
        let limits = [0, 1 << 19, 1 << 20, 64 << 20].map(|bytes| store_time_limit(bytes).as_secs());
        assert_eq!(limits, [8, 8, 9, 72]);
    }
}
