//! When a worker that cannot run builds closes itself.

use std::{collections::BTreeMap, time::Duration};

use model::{Group, Millis, ReasonCode};

/// Pauses after the first faults: where there is no other worker, a fault that soon passes must not
/// use up all attempts of a build.
const FIRST: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(10)];
const MOST: Duration = Duration::from_secs(600);
/// Time for which a worker remembers whose builds ran and whose sources it could not fetch.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// For how long a worker accepts no builds after it gave back this many in a row because of its own faults; none without a
/// fault. It then tries one more, and after the third fault each further one doubles the pause, up to 10 minutes.
pub fn pause_after_faults(in_a_row: u32) -> Option<Duration> {
    let index = usize::try_from(in_a_row.checked_sub(1)?).unwrap_or(usize::MAX);
    let [.., last] = FIRST;
    let doublings = in_a_row.saturating_sub(u32::try_from(FIRST.len()).unwrap_or(u32::MAX));
    let later = || last.saturating_mul(2_u32.saturating_pow(doublings)).min(MOST);
    Some(FIRST.get(index).copied().unwrap_or_else(later))
}

/// Sources that a worker could not fetch, but another one could. Their server may be that of a tenant, who can have it fail for
/// some workers, so those of one group close no worker on which other groups have builds.
#[derive(Debug, Default)]
pub struct SourceFaults {
    /// Last run of a build, by group.
    ran: BTreeMap<Group, Millis>,
    /// Last fault, by group, if no build of the group has run since.
    failed: BTreeMap<Group, Millis>,
}

impl SourceFaults {
    /// Notes that a build of `group` ran.
    pub fn note_run(&mut self, group: &Group, now: Millis) {
        self.ran.insert(group.clone(), now);
        self.failed.remove(group);
        self.forget(now);
    }

    /// Notes a fault with a build of `group`; returns whether it counts as the worker's: no other group's builds ran, or
    /// sources of another group failed too.
    pub fn note(&mut self, group: &Group, now: Millis) -> bool {
        self.failed.insert(group.clone(), now);
        self.forget(now);
        let has_other = |known: &BTreeMap<Group, Millis>| known.keys().any(|other| other != group);
        !has_other(&self.ran) || has_other(&self.failed)
    }

    fn forget(&mut self, now: Millis) {
        for known in [&mut self.ran, &mut self.failed] {
            known.retain(|_, at| now.since(*at) < REMEMBERED);
        }
    }
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
    fn sources_of_one_group_close_no_worker_that_others_use() {
        let [one, other] = ["one", "other"].map(|name| name.parse::<Group>().unwrap());
        let mut faults = SourceFaults::default();
        let now = Millis(10_000_000);
        faults.note_run(&one, now);
        assert!(faults.note(&one, now), "nobody else is affected");
        faults.note_run(&other, now);
        assert!(!faults.note(&one, now));
        assert!(faults.note(&other, now), "sources of two groups failed");
        faults.note_run(&other, now);
        assert!(!faults.note(&one, now), "the other group's builds run again");
        assert!(faults.note(&one, now.after(REMEMBERED)), "an hour later nothing of it counts");
    }

    #[test]
    fn the_pause_grows_up_to_its_limit() {
        let seconds = |faults| pause_after_faults(faults).map(|pause| pause.as_secs());
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 9, u32::MAX].map(seconds),
            [None, Some(2), Some(5), Some(10), Some(20), Some(40), Some(600), Some(600)]
        );
    }
}
