//! Names of the child processes: servers, services and the watchdog.

pub(crate) const NATS: &str = "nats-server";
pub(crate) const REDIS: &str = "redis-server";
/// Name of the process that stops the other children if `up` is killed.
pub const WATCHDOG: &str = "watchdog";

pub(crate) const GATEWAY: &str = "gateway";
pub(crate) const ENQUEUER: &str = "enqueuer";
pub(crate) const DISPATCHER: &str = "dispatcher";
pub(crate) const REAPER: &str = "reaper";
pub(crate) const SCHEDULER: &str = "scheduler";
pub(crate) const CAS: &str = "cas";
pub(crate) const GOVERNOR: &str = "governor";
pub(crate) const ARCHIVE: &str = "archive";
pub(crate) const TRAINER: &str = "trainer";
pub(crate) const AUTOSCALER: &str = "autoscaler";
pub(crate) const WORKER: &str = "worker";
pub(crate) const EXECUTOR: &str = "executor";

/// Whether the child with this name is a worker.
pub(crate) fn is_worker(name: &str) -> bool {
    name.strip_prefix(WORKER).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}
