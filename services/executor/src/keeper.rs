//! The executor's lease: taken before the first question for work, renewed at a third of its life.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bus::{Acquired, Bus, BusError, Lease, Renewed};
use model::{ExecutorHeartbeat, ExecutorId};
use service::ServiceError;
use tracing::{debug, warn};

use crate::{Shared, heartbeat};

/// A lease that is kept alive.
pub(crate) struct Keeper {
    bus: Bus,
    shared: Arc<Shared>,
    lease: Lease<ExecutorId>,
    renewed_at: Instant,
}

/// How long one call may take, and one renewal with all its calls: a cut of the network that is shorter than the lease
/// leaves time for another.
const PATIENCE: Duration = Duration::from_secs(2);
const TRY: Duration = Duration::from_millis(2500);
const RETRY: Duration = Duration::from_millis(200);

impl Keeper {
    /// Takes the lease. An id is used once, so nobody can hold it.
    pub(crate) async fn acquire(shared: &Arc<Shared>) -> Result<Self, ServiceError> {
        let bus = shared.context.bus.clone();
        let holder = content(shared);
        let renewed_at = Instant::now();
        match bus.acquire_lease(&shared.id, holder, Duration::from_secs(30)).await? {
            Acquired::Held(lease) => Ok(Self { bus, shared: shared.clone(), lease, renewed_at }),
            Acquired::Taken => Err(ServiceError::failed("taking the executor's lease", "someone holds it")),
        }
    }

    /// Renews until the lease is lost: refused by the store, or not renewed in time to be sure of it.
    pub(crate) async fn lost(&mut self) {
        let ttl = Duration::from_millis(self.lease.holder.ttl_ms);
        // Everything is dead before the lease can be seen to expire.
        let margin = (ttl / 5).max(Duration::from_millis(200));
        let mut reconnects = self.bus.reconnects();
        loop {
            tokio::select! {
                () = tokio::time::sleep((ttl / 3).saturating_sub(self.renewed_at.elapsed())) => {}
                // Commands show what the lease says.
                () = self.shared.changed.notified() => {}
            }
            let sent = Instant::now();
            let left = (ttl.saturating_sub(margin)).saturating_sub(self.renewed_at.elapsed());
            if left.is_zero() {
                warn!("the lease could not be renewed in time");
                return;
            }
            let renewed = tokio::select! {
                renewed = tokio::time::timeout(left.min(TRY), self.renew()) => renewed,
                // What was sent before is lost, or its answer is.
                () = reconnects.next() => continue,
            };
            match renewed {
                Ok(Ok(Renewed::Held)) => self.renewed_at = sent,
                Ok(Ok(Renewed::Lost)) => return,
                Ok(Err(error)) => {
                    debug!(error = telemetry::error_chain(&error), "the lease is renewed again");
                    tokio::time::sleep(RETRY.min(left)).await;
                }
                Err(_) => {}
            }
        }
    }

    /// Renews it once.
    async fn renew(&mut self) -> Result<Renewed, BusError> {
        self.lease.holder = content(&self.shared);
        if self.bus.renew_lease(&mut self.lease, PATIENCE).await? == Renewed::Held {
            return Ok(Renewed::Held);
        }
        // A renewal that was given up may have come through all the same. Nobody else takes a lease of this name.
        match self.bus.lease(&self.shared.id).await? {
            None => Ok(Renewed::Lost),
            Some((revision, _)) => {
                self.lease.revision = revision;
                self.bus.renew_lease(&mut self.lease, PATIENCE).await
            }
        }
    }

    /// Gives the lease back: what is still in hand is queued again at once.
    pub(crate) async fn release(self) {
        if let Err(error) = self.bus.release_lease(&self.lease).await {
            debug!(error = telemetry::error_chain(&error), "the lease was not released; it expires");
        }
    }
}

/// What the lease says: who we are, without what runs, which changes too often.
fn content(shared: &Shared) -> ExecutorHeartbeat {
    let ttl = Duration::from_secs(shared.context.settings.lease_ttl_seconds);
    ExecutorHeartbeat {
        running: Vec::new(),
        ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
        ..heartbeat::content(shared, shared.hands.status())
    }
}
