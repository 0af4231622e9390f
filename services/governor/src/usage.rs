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
    groups: BTreeMap<Group, Occupancy>,
}

impl Usage {
    fn record(&self, report: UsageReport) {
        let expires_at = Instant::now() + Duration::from_millis(report.interval_ms.saturating_mul(3));
        self.0.lock().insert(report.source, Reported { expires_at, groups: report.groups });
    }

    /// The current use by group.
    pub(crate) fn now(&self) -> BTreeMap<Group, Occupancy> {
        let now = Instant::now();
        let mut reports = self.0.lock();
        reports.retain(|_, report| report.expires_at > now);
        let mut all: BTreeMap<Group, Occupancy> = BTreeMap::new();
        for (group, occupancy) in reports.values().flat_map(|report| &report.groups) {
            let sum = all.entry(group.clone()).or_default();
            for (kind, amount) in occupancy.iter() {
                sum.add(kind, amount.or_zero());
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
