//! The quotas and the governor's last decision, as they change: for whoever decides by them.

use std::{sync::Arc, time::Duration};

use bus::{Bus, BusError, QuotaChange};
use model::{GovernorRecord, Quotas};
use policy::{QuotaTotals, Spare};
use tokio::{sync::watch, time::Instant};
use tracing::{debug, warn};

use crate::{Context, ServiceError};

/// A burst of changes is read once.
const SETTLE: Duration = Duration::from_millis(20);
const RETRY: Duration = Duration::from_secs(1);
/// A change that was told may be lost: so often the quotas are read again.
const REPAIR: Duration = Duration::from_secs(120);

/// What is known of quotas.
#[derive(Debug, Default)]
pub struct Governance {
    /// The quotas.
    pub quotas: Quotas,
    /// What they add up to.
    pub totals: QuotaTotals,
    /// What the governor decided last.
    pub record: GovernorRecord,
    /// What no group needs of the quotas, by that decision.
    pub spare: Spare,
}

impl Governance {
    /// Reads what stands there now. A quota that cannot be read is left out, and told.
    pub async fn read(bus: &Bus) -> Result<Self, BusError> {
        let told = |error: BusError| warn!(error = telemetry::error_chain(&error), "a quota is left out");
        let quotas = bus.quotas(told).await?;
        let (_, record) = bus.governor_record().await?;
        Ok(Self { totals: QuotaTotals::of(&quotas), spare: Spare::of(&quotas, &record), quotas, record })
    }
}

/// What is known; nothing before the first reading.
pub type Current = Option<Arc<Governance>>;

/// Keeps `current` until the service stops, and calls `wake` after each change.
pub async fn follow_governance(
    context: Context,
    current: watch::Sender<Current>,
    wake: impl Fn(),
) -> Result<(), ServiceError> {
    let what = "following the quotas";
    let changes = context.bus.quota_changes().await;
    let mut changes = changes.map_err(|error| ServiceError::failed(what, error))?;
    let mut reconnects = context.bus.reconnects();
    loop {
        match Governance::read(&context.bus).await {
            Ok(found) => {
                current.send_replace(Some(Arc::new(found)));
                wake();
            }
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "the quotas are read again soon");
                tokio::select! {
                    () = context.stop.cancelled() => return Ok(()),
                    () = tokio::time::sleep(RETRY) => continue,
                }
            }
        }
        // Until the quotas themselves change.
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
                    let (quotas, totals) =
                        known.map(|known| (known.quotas.clone(), known.totals.clone())).unwrap_or_default();
                    let spare = Spare::of(&quotas, &record);
                    let known = Governance { quotas, totals, record: *record, spare };
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
