//! The quotas and the last decision of the governor, kept up to date for services that decide by them.

use std::{sync::Arc, time::Duration};

use bus::{Bus, BusError, QuotaChange};
use invariant::Present as _;
use model::{GovernorRecord, Quotas};
use policy::{ExecutorLimit, QuotaTotals, Spare};
use tokio::{sync::watch, time::Instant};
use tracing::{debug, warn};

use crate::{Context, ServiceError};

/// How long to wait for further changes, so that a burst of changes is read once.
const SETTLE: Duration = Duration::from_millis(20);
const RETRY: Duration = Duration::from_secs(1);
/// Interval between two reads of all quotas, because change notifications may be lost.
const REPAIR: Duration = Duration::from_secs(120);

/// Current quotas and decisions.
#[derive(Debug, Default)]
pub struct Governance {
    /// Quotas of all groups.
    pub quotas: Quotas,
    /// Sums of all quotas.
    pub totals: QuotaTotals,
    /// Last decision of the governor.
    pub record: GovernorRecord,
    /// Quota that no group needs, according to that decision.
    pub spare: Spare,
    /// Limit of builds that run actions, according to that decision.
    pub executor_limit: ExecutorLimit,
}

impl Governance {
    /// Reads the current state. A value that cannot be read is skipped with a warning.
    pub async fn read(bus: &Bus) -> Result<Self, BusError> {
        let quotas = bus.buckets().quotas().await?;
        let (_, record) = bus.buckets().get::<GovernorRecord>(&()).await?;
        let record = record.unwrap_or_default();
        Ok(Self::of(QuotaTotals::of(&quotas), quotas, record))
    }

    /// The state with these quotas, whose sums are `totals`, and this decision.
    fn of(totals: QuotaTotals, quotas: Quotas, record: GovernorRecord) -> Self {
        let (spare, executor_limit) = (Spare::of(&quotas, &record), ExecutorLimit::of(&totals, &record));
        Self { quotas, totals, record, spare, executor_limit }
    }
}

/// The current state; `None` before the first read.
pub type Current = Option<Arc<Governance>>;

/// Keeps `current` up to date until the service stops, and calls `wake` after each change.
pub async fn follow_governance(
    context: Context,
    current: watch::Sender<Current>,
    wake: impl Fn(),
) -> Result<(), ServiceError> {
    let what = "following the quotas";
    let changes = context.bus.buckets().changes::<QuotaChange>().await;
    let mut changes = changes.map_err(|error| ServiceError::failed(what, error))?;
    let mut reconnects = context.bus.reconnects();
    loop {
        match Governance::read(&context.bus).await {
            Ok(found) => {
                current.send_replace(Some(Arc::new(found)));
                wake();
            }
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot read the quotas, retrying");
                tokio::select! {
                    () = context.stop.cancelled() => return Ok(()),
                    () = tokio::time::sleep(RETRY) => continue,
                }
            }
        }
        // Only a change of the quotas themselves postpones the next repair.
        let repair = Instant::now() + REPAIR;
        loop {
            let change = tokio::select! {
                () = context.stop.cancelled() => return Ok(()),
                () = reconnects.next() => break,
                () = tokio::time::sleep_until(repair) => break,
                change = changes.next() => change,
            };
            match change {
                Some(QuotaChange::Governor(record)) => {
                    debug!(tick = record.tick, "the governor decided");
                    let known = current.borrow().clone();
                    let known = known.map(|known| (known.quotas.clone(), known.totals.clone()));
                    let (quotas, totals) = known.present("the quotas, which are read before changes");
                    let known = Governance::of(totals, quotas, *record);
                    current.send_replace(Some(Arc::new(known)));
                    wake();
                }
                Some(QuotaChange::Quotas) => {
                    tokio::time::sleep(SETTLE).await;
                    break;
                }
                None => return Err(ServiceError::failed(what, "the subscription ended")),
            }
        }
    }
}
