//! Reports of the resources in use by each group, from workers and executors to the governors.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use bus::{Bus, millis};
use model::{Group, Occupancy, UsageReport};
use tokio::{sync::Notify, time::MissedTickBehavior};

use crate::ServiceError;

/// Time between two reports.
pub const USAGE_REPORT_INTERVAL: Duration = Duration::from_secs(2);

/// The resources in use on a process that runs work.
pub trait UsageSource: Sync {
    /// Time between two measurements, of which a whole number make up the time between two reports.
    const MEASURED_EVERY: Duration;

    /// Whether the process is an executor.
    const ON_EXECUTOR: bool;

    /// Notified when work begins.
    fn begun(&self) -> &Notify;

    /// Whether work runs, or ran since the last report.
    fn is_used(&self) -> bool;

    /// Measures the work that runs. By default there is nothing to measure: use follows from the time alone.
    fn measure(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Average use since the last report, `seconds` ago.
    fn take_report(&self, seconds: f64) -> BTreeMap<Group, Occupancy>;
}

/// Reports the use of the process `name` until the future is dropped: while work runs, and once more after it ended.
pub async fn report_usage<U: UsageSource>(usage: &U, bus: &Bus, name: &str) -> Result<(), ServiceError> {
    loop {
        usage.begun().notified().await;
        let mut reported_at = Instant::now();
        let first = tokio::time::Instant::now() + U::MEASURED_EVERY;
        let mut ticks = tokio::time::interval_at(first, U::MEASURED_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The work may have been reported already.
        let mut used = usage.is_used();
        while used {
            ticks.tick().await;
            usage.measure().await;
            let elapsed = reported_at.elapsed();
            if elapsed + U::MEASURED_EVERY / 2 < USAGE_REPORT_INTERVAL {
                continue;
            }
            // Work that begins from here on is notified again; what ran in between is in the report.
            let was_used = usage.is_used();
            let groups = usage.take_report(elapsed.as_secs_f64());
            used = was_used || !groups.is_empty();
            reported_at = Instant::now();
            let interval_ms = millis(USAGE_REPORT_INTERVAL);
            let source = name.to_owned();
            let report = UsageReport { source, interval_ms, groups, on_executor: U::ON_EXECUTOR };
            bus.send_or_log(&(), &report).await;
        }
    }
}
