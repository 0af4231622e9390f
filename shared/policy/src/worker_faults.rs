//! When a worker that cannot run builds closes itself.

use std::time::Duration;

use model::ReasonCode;

/// Pauses after the first faults: where there is no other worker, a fault that soon passes must not
/// use up all attempts of a build.
const FIRST: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(10)];
const MOST: Duration = Duration::from_secs(600);

/// For how long a worker accepts no builds after it gave back this many in a row because of its own faults; none without a
/// fault. It then tries one more, and after the third fault each further one doubles the pause, up to 10 minutes.
pub fn pause_after_faults(in_a_row: u32) -> Option<Duration> {
    let index = usize::try_from(in_a_row.checked_sub(1)?).unwrap_or(usize::MAX);
    let [.., last] = FIRST;
    let doublings = in_a_row.saturating_sub(u32::try_from(FIRST.len()).unwrap_or(u32::MAX));
    let later = || last.saturating_mul(2_u32.saturating_pow(doublings)).min(MOST);
    Some(FIRST.get(index).copied().unwrap_or_else(later))
}

/// Whether a build that a worker gave back for this reason should run on another worker.
pub fn avoids_worker(code: ReasonCode) -> bool {
    match code {
        ReasonCode::WorkerFault
        | ReasonCode::DiskFull
        | ReasonCode::ContextUnavailable
        | ReasonCode::SecretUnavailable
        | ReasonCode::StoreUnreachable
        | ReasonCode::GatewayUnreachable
        | ReasonCode::WorkerOutOfMemory
        | ReasonCode::LeaseExpired => true,
        ReasonCode::CommandFailed
        | ReasonCode::CommandNotStarted
        | ReasonCode::ServiceFailed
        | ReasonCode::TasksFailed
        | ReasonCode::OutputNotKept
        | ReasonCode::OutputMissing
        | ReasonCode::OutOfMemory
        | ReasonCode::TooManyProcesses
        | ReasonCode::TooMuchDisk
        | ReasonCode::TooMuchOutput
        | ReasonCode::RunningTooLong
        | ReasonCode::QueuedTooLong
        | ReasonCode::Cancelled
        | ReasonCode::WorkerDrained
        | ReasonCode::InvalidRequest => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_up_to_its_limit() {
        let seconds = |faults| pause_after_faults(faults).map(|pause| pause.as_secs());
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 9, u32::MAX].map(seconds),
            [None, Some(2), Some(5), Some(10), Some(20), Some(40), Some(600), Some(600)]
        );
    }
}
