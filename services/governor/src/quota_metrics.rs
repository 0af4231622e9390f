//! Quotas and the last decision, as metrics. Every governor shows the same, whichever decided.

use model::{Esu, Governed};
use policy::{QuotaRow, quota_rows};
use service::{Context, Current, Governance, ServiceError};
use telemetry::metrics::{Gauge, Label, Readings, Shown};
use tokio::sync::watch;

/// Maximum number of groups with series of their own.
const GROUPS_MAX: usize = 50;

/// Shows every decision until the service stops.
pub(crate) async fn follow(
    context: Context,
    mut governance: watch::Receiver<Current>,
) -> Result<(), ServiceError> {
    let mut shown = Shown::default();
    loop {
        let known = governance.borrow_and_update().clone();
        if let Some(known) = known {
            shown.replace(readings(&known));
        }
        let changed = context.stop.run_until_cancelled(governance.changed()).await;
        if !matches!(changed, Some(Ok(()))) {
            return Ok(());
        }
    }
}

fn readings(known: &Governance) -> Readings {
    let mut readings = Readings::default();
    for QuotaRow { group, kind, governed } in quota_rows(&known.quotas, &known.record, GROUPS_MAX) {
        let labels = [(Label::Group, group), (Label::ExecutorType, kind.as_str())];
        for (gauge, amount) in amounts(&governed) {
            readings.add(gauge, &labels, amount.micros() / 1000);
        }
    }
    readings
}

fn amounts(governed: &Governed) -> [(Gauge, Esu); 7] {
    [
        (Gauge::QuotaMilliEsu, governed.quota),
        (Gauge::QuotaInUseMilliEsu, governed.pv),
        (Gauge::QuotaSetPointMilliEsu, governed.sp),
        (Gauge::QuotaToStartMilliEsu, governed.mv),
        (Gauge::QuotaTargetMilliEsu, governed.target),
        (Gauge::QuotaInProgressMilliEsu, governed.in_progress),
        (Gauge::QuotaWaitingMilliEsu, governed.waiting),
    ]
}
