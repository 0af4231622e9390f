//! The order in which children stop, and the time that each of them has.

use std::time::Duration;

use crate::names;

/// Number of stages in which children stop.
pub(crate) const STAGES: u8 = 6;
/// Time between SIGTERM and SIGKILL of a service, in addition to the drain time of workers and executors.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
const REDIS_GRACE: Duration = Duration::from_secs(1);
const NATS_GRACE: Duration = Duration::from_secs(3);

/// Stage in which a child stops, and the time between its SIGTERM and SIGKILL.
pub(crate) fn stage(name: &str, drain: Duration) -> (u8, Duration) {
    match name {
        // Stopped after the workers, since running builds and users need them.
        names::GATEWAY | names::ENQUEUER => (1, GRACE),
        names::DISPATCHER
        | names::GOVERNOR
        | names::AUTOSCALER
        | names::ARCHIVE
        | names::TRAINER
        | names::REAPER
        | names::SCHEDULER
        | names::CAS => (2, GRACE),
        names::REDIS => (3, REDIS_GRACE),
        names::NATS => (4, NATS_GRACE),
        names::WATCHDOG => (5, GRACE),
        name if names::is_worker(name) => (0, drain + GRACE),
        // Executors: stopped after the workers, whose builds use them.
        _ => (1, drain + GRACE),
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, STAGES, names, stage};

    #[test]
    fn stopping_is_ordered_and_bounded() {
        let drain = Duration::from_secs(10);
        let names = [
            "worker",
            "worker-2",
            "gateway",
            "executor-1",
            "dispatcher",
            names::REDIS,
            names::NATS,
            names::WATCHDOG,
        ];
        let stages: Vec<u8> = names.iter().map(|name| stage(name, drain).0).collect();
        assert_eq!(stages, [0, 0, 1, 1, 2, 3, 4, 5]);
        assert!(stages.iter().all(|stage| *stage < STAGES));
        let longest: Duration =
            ["worker", "executor", names::REAPER, names::REDIS, names::NATS, names::WATCHDOG]
                .iter()
                .map(|name| stage(name, drain).1)
                .sum();
        assert_eq!(longest, 2 * drain + Duration::from_secs(12));
    }
}
