//! The current use, as workers and executors report it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use model::{Group, Occupancy, UsageReport};
use parking_lot::Mutex;
use service::{Context, ServiceError, Subscription};
use tokio::time::Instant;

/// The last report of each source. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Usage(Arc<Mutex<HashMap<String, Reported>>>);

struct Reported {
    expires_at: Instant,
    on_executor: bool,
    groups: BTreeMap<Group, Occupancy>,
}

/// ESU in use now.
#[derive(Default)]
pub(crate) struct InUse {
    /// ESU in use by each group, on workers and executors.
    pub(crate) groups: BTreeMap<Group, Occupancy>,
    /// ESU in use on executors by all groups.
    pub(crate) on_executors: Occupancy,
}

impl Usage {
    fn record(&self, report: UsageReport) {
        let expires_at = Instant::now() + Duration::from_millis(report.interval_ms.saturating_mul(3));
        let UsageReport { source, groups, on_executor, interval_ms: _ } = report;
        self.0.lock().insert(source, Reported { expires_at, on_executor, groups });
    }

    /// The use that the last reports say.
    pub(crate) fn now(&self) -> InUse {
        let now = Instant::now();
        let mut reports = self.0.lock();
        reports.retain(|_, report| report.expires_at > now);
        let mut all = InUse::default();
        for report in reports.values() {
            for (group, occupancy) in &report.groups {
                let sum = all.groups.entry(group.clone()).or_default();
                for (kind, amount) in occupancy.iter() {
                    sum.add(kind, amount.or_zero());
                    if report.on_executor {
                        all.on_executors.add(kind, amount.or_zero());
                    }
                }
            }
        }
        all
    }
}

/// Processes usage reports until the service stops.
pub(crate) async fn serve(context: Context, usage: Usage) -> Result<(), ServiceError> {
    let mut reports = Subscription::<UsageReport>::new(&context.bus, &()).await?;
    loop {
        let report = tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            report = reports.next() => report?,
        };
        usage.record(report.content);
    }
}
