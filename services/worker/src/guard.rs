//! Keeps a command's deadline up to date, and kills the command when its run must end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sandbox::WorkspaceLimits;
use shim::{Control, Deadline};
use tokio::{sync::watch, task::JoinHandle, time::Instant};

use crate::stop::{Cause, Stop};

/// Time between two checks of the control groups.
const LIMITS_TICK: Duration = Duration::from_millis(200);

/// Renews the deadline of a command and kills it when it must end, independently of what the run waits for.
pub(crate) struct Guard {
    control: Control,
    timed_out: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Guard {
    pub(crate) fn start(
        control: Control,
        deadline: watch::Receiver<Deadline>,
        stop: Stop,
        limits: Arc<WorkspaceLimits>,
        (timeout_at, grace): (Instant, Duration),
    ) -> Self {
        let timed_out = Arc::new(AtomicBool::new(false));
        let timeout = (timeout_at, timed_out.clone());
        let task = tokio::spawn(guard(control.clone(), deadline, (stop, limits), timeout, grace));
        Self { control, timed_out, task }
    }

    /// Whether the command was killed because of its timeout.
    pub(crate) fn has_timed_out(&self) -> bool {
        self.timed_out.load(Ordering::Relaxed)
    }

    /// Kills the command at once.
    pub(crate) async fn kill(&self) {
        // If the shim is gone, its processes are dead too.
        let _ = self.control.kill(Duration::ZERO).await;
    }

    /// Ends the run: processes that its command left have no deadline any more. Returns whether
    /// the shim confirmed this.
    pub(crate) async fn release(mut self) -> bool {
        self.task.abort();
        // A renewal in flight must not arrive after this.
        let _ = (&mut self.task).await;
        self.control.renew(Deadline::NEVER).await.is_ok()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn guard(
    control: Control,
    mut deadline: watch::Receiver<Deadline>,
    (stop, limits): (Stop, Arc<WorkspaceLimits>),
    (timeout_at, timed_out): (Instant, Arc<AtomicBool>),
    grace: Duration,
) {
    let (mut stopping, mut over) = (false, false);
    loop {
        tokio::select! {
            Ok(()) = deadline.changed() => {
                let renewed = *deadline.borrow_and_update();
                // If the shim is gone, the loop over its events reports that.
                let _ = control.renew(renewed).await;
            }
            () = stop.wanted(), if !stopping => {
                stopping = true;
                // A run that lost its lease gets at most a short grace period.
                let drained = stop.cause() == Some(Cause::Drained);
                let grace = if drained { grace } else { grace.min(Duration::from_secs(1)) };
                // If the shim is gone, its processes are dead too.
                let _ = control.kill(grace).await;
            }
            () = tokio::time::sleep_until(timeout_at), if !timed_out.load(Ordering::Relaxed) => {
                timed_out.store(true, Ordering::Relaxed);
                // If the shim is gone, its processes are dead too.
                let _ = control.kill(grace).await;
            }
            // What cannot start more processes may try again and again, and disturb other builds.
            () = tokio::time::sleep(LIMITS_TICK), if !over => {
                over = limits.is_over_processes();
                if over {
                    // If the shim is gone, its processes are dead too.
                    let _ = control.kill(Duration::ZERO).await;
                }
            }
            else => return,
        }
    }
}
