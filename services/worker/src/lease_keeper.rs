//! Renews a lease while its build runs.

use std::{sync::Arc, time::Duration};

use bus::{Bus, Lease, Renewed};
use model::{Millis, Sequence};
use parking_lot::Mutex;
use service::{Step, crash_point};
use shim::Deadline;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use tracing::{debug, info};

use crate::stop::{Cause, Stop};

/// Delay of the first report that outputs are stored. A build whose outputs are stored sooner needs no such renewal.
const FIRST_REPORT: Duration = Duration::from_secs(1);

/// Renews a lease at a third of its lifetime until dropped or finished.
pub(crate) struct LeaseKeeper {
    task: JoinHandle<()>,
    lease: watch::Receiver<Lease>,
    /// When the processes must be dead unless the lease is renewed again.
    pub(crate) deadline: watch::Receiver<Deadline>,
    stored: Arc<Stored>,
}

/// The storing of outputs.
#[derive(Default)]
struct Stored {
    /// Time when a part of the outputs was last stored, if the command has ended.
    at: Mutex<Option<Millis>>,
    /// Notified when `at` is set for the first time.
    first: Notify,
}

/// When processes must be dead if a renewal sent now is the last: before another worker can acquire the lease.
pub(crate) fn deadline_after(ttl: Duration) -> Deadline {
    // Killing takes milliseconds; the margin covers a shim that is not scheduled at once.
    Deadline::after(ttl.saturating_sub((ttl / 8).min(Duration::from_secs(1))))
}

impl LeaseKeeper {
    /// Starts renewing `lease`; without a renewal its processes must be dead at `deadline`.
    ///
    /// `started_at` is the position of the run's INVOCATION_STARTED: at each renewal it must still be
    /// the build's last record.
    pub(crate) fn start(
        bus: Bus,
        lease: Lease,
        started_at: Sequence,
        deadline: Deadline,
        stop: Stop,
    ) -> Self {
        let (lease_sender, lease_receiver) = watch::channel(lease);
        let (deadline_sender, deadline_receiver) = watch::channel(deadline);
        let stored = Arc::<Stored>::default();
        let senders = (lease_sender, deadline_sender);
        let task = tokio::spawn(keep(bus, senders, started_at, Arc::clone(&stored), stop));
        Self { task, lease: lease_receiver, deadline: deadline_receiver, stored }
    }

    /// Reports with the next renewal that a part of the outputs was stored `at` this time: the reaper then does not end
    /// the build because of its timeout. The first report causes a renewal.
    pub(crate) fn report_stored(&self, at: Millis) {
        let before = self.stored.at.lock().replace(at);
        if before.is_none() {
            self.stored.first.notify_one();
        }
    }

    /// Stops renewing and returns the lease, so that it can be released.
    pub(crate) async fn finish(&mut self) -> Lease {
        self.task.abort();
        // Ends with the error that it was aborted.
        let _ = (&mut self.task).await;
        self.lease.borrow().clone()
    }
}

async fn keep(
    bus: Bus,
    (lease, deadline): (watch::Sender<Lease>, watch::Sender<Deadline>),
    started_at: Sequence,
    stored: Arc<Stored>,
    stop: Stop,
) {
    let mut held = lease.borrow().clone();
    let ttl = Duration::from_secs(held.holder.ttl_seconds);
    let mut pause = ttl / 3;
    loop {
        let due = Instant::now() + pause;
        tokio::select! {
            () = sleep_until(due) => {}
            () = stored.first.notified() => sleep_until(due.min(Instant::now() + FIRST_REPORT)).await,
        }
        let next = deadline_after(ttl);
        held.holder.stored_at_ms = *stored.at.lock();
        match bus.leases().renew(&mut held, ttl / 3).await {
            Ok(Renewed::Held) => {
                lease.send_replace(held.clone());
                deadline.send_replace(next);
                crash_point(Step::LeaseRenewed);
                if ended_elsewhere(&bus, &held, started_at).await {
                    stop.now(Cause::EndedElsewhere);
                    return;
                }
                pause = ttl / 3;
            }
            Ok(Renewed::Lost) => {
                info!(key = %held.key, "lease lost");
                stop.now(Cause::LeaseLost);
                return;
            }
            Err(error) => {
                debug!(key = %held.key, error = telemetry::error_chain(&error), "lease not renewed yet, retrying");
                pause = Duration::from_millis(50);
            }
        }
    }
}

/// Whether another process moved the build on and its message was lost: a canceller may die before it sends one.
async fn ended_elsewhere(bus: &Bus, lease: &Lease, started_at: Sequence) -> bool {
    matches!(bus.records().latest(&lease.key).await, Ok(Some((position, _))) if position > started_at)
}
