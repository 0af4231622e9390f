//! The lease of the executor: acquired before the first report of room, renewed at a third of its duration.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bus::{Acquired, Bus, BusError, Lease, Renewed, millis};
use model::{ExecutorHeartbeat, ExecutorId};
use service::ServiceError;
use tracing::{debug, warn};

use crate::{heartbeat, image, shared::Shared};

/// A lease with its automatic renewal.
pub(crate) struct Keeper {
    bus: Bus,
    shared: Arc<Shared>,
    lease: Lease<ExecutorId>,
    renewed_at: Instant,
}

/// Time limit of one call, and of one renewal with all its calls. A network outage shorter than the lease leaves
/// time for another try.
const PATIENCE: Duration = Duration::from_secs(2);
const TRY: Duration = Duration::from_millis(2500);
const RETRY: Duration = Duration::from_millis(200);

impl Keeper {
    /// Acquires the lease. An id is used only once, so the lease cannot be held already.
    pub(crate) async fn acquire(shared: &Arc<Shared>) -> Result<Self, ServiceError> {
        let bus = shared.context.bus.clone();
        let holder = content(shared);
        let renewed_at = Instant::now();
        match bus.leases().acquire(&shared.id, holder, Duration::from_secs(30)).await? {
            Acquired::Held(lease) => Ok(Self { bus, shared: shared.clone(), lease, renewed_at }),
            Acquired::Taken => {
                Err(ServiceError::failed("acquiring the executor's lease", "it is already held"))
            }
        }
    }

    /// Renews the lease until it is lost: refused by the store, or not renewed in time to be certain.
    pub(crate) async fn lost(&mut self) {
        let ttl = Duration::from_millis(self.lease.holder.ttl_ms);
        // All actions must be dead before others can see the lease expire.
        let margin = (ttl / 5).max(Duration::from_millis(200));
        let mut reconnects = self.bus.reconnects();
        loop {
            tokio::select! {
                () = tokio::time::sleep((ttl / 3).saturating_sub(self.renewed_at.elapsed())) => {}
                // The lease holds the status that CLI commands show.
                () = self.shared.changed.notified() => {}
            }
            let sent = Instant::now();
            let left = (ttl.saturating_sub(margin)).saturating_sub(self.renewed_at.elapsed());
            if left.is_zero() {
                warn!("the lease was not renewed in time");
                return;
            }
            let renewed = tokio::select! {
                renewed = tokio::time::timeout(left.min(TRY), self.renew()) => renewed,
                // The earlier request or its answer is lost.
                () = reconnects.next() => continue,
            };
            match renewed {
                Ok(Ok(Renewed::Held)) => self.renewed_at = sent,
                Ok(Ok(Renewed::Lost)) => return,
                Ok(Err(error)) => {
                    debug!(error = telemetry::error_chain(&error), "retrying to renew the lease");
                    tokio::time::sleep(RETRY.min(left)).await;
                }
                Err(_) => {}
            }
        }
    }

    /// Renews the lease once.
    async fn renew(&mut self) -> Result<Renewed, BusError> {
        self.lease.holder = content(&self.shared);
        if self.bus.leases().renew(&mut self.lease, PATIENCE).await? == Renewed::Held {
            return Ok(Renewed::Held);
        }
        // A renewal that timed out may have succeeded. Other executors never use a lease of this name.
        match self.bus.leases().get(&self.shared.id).await? {
            None => Ok(Renewed::Lost),
            Some((revision, _)) => {
                self.lease.revision = revision;
                self.bus.leases().renew(&mut self.lease, PATIENCE).await
            }
        }
    }

    /// Releases the lease: held actions are requeued at once.
    pub(crate) async fn release(self) {
        if let Err(error) = self.bus.leases().release(&self.lease).await {
            debug!(error = telemetry::error_chain(&error), "the lease was not released; it expires");
        }
    }
}

/// The content of the lease: the heartbeat without the running actions, which change too often.
fn content(shared: &Shared) -> ExecutorHeartbeat {
    let ttl_ms = millis(shared.settings.lease_ttl);
    let image_names = image::names(shared);
    ExecutorHeartbeat { running: Vec::new(), image_names, ttl_ms, ..heartbeat::content(shared) }
}
