//! The loop of one workspace.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt as _;
use model::{Attempt, OfferVerdict, WorkspaceKind};
use service::ServiceError;
use shim::{Options, Shim, ShimError};
use telemetry::metrics::{Counter, Label, count};
use tracing::{debug, info, warn};

use crate::{
    Shared, claim, run,
    slots::{Assignment, Ears, Phase, ShutDown, Warmth},
    stop::Stop,
    warm::Left,
};

/// Time between two attempts to start a shim.
const SHIM_RETRY: Duration = Duration::from_secs(5);
/// Time that a tool server has to save its state.
const TOOL_GRACE: Duration = Duration::from_secs(10);

struct Place {
    shared: Arc<Shared>,
    number: u16,
    program: PathBuf,
    shim: Option<Shim>,
    /// Files and keys of the last build, if another build can reuse them.
    left: Option<Left>,
    /// When that build ended.
    since: Instant,
}

/// The loop of one workspace: claims the builds offered to it and runs them.
pub(crate) async fn serve(shared: Arc<Shared>, number: u16, program: PathBuf) -> Result<(), ServiceError> {
    let mut ears = shared
        .slots
        .take_ears(number)
        .ok_or_else(|| ServiceError::failed("a workspace", "the workspace already has a loop"))?;
    let mut place = Place { shared, number, program, shim: None, left: None, since: Instant::now() };
    loop {
        let closing = place.shared.slots.closing.clone();
        let Some(shim) = place.ready(&mut ears).await else { continue };
        tokio::select! {
            Some(assignment) = ears.offers.recv() => place.take(assignment, &mut ears).await,
            Some(order) = ears.orders.recv() => place.obey(order, &mut ears).await,
            // The remaining processes have ended, or the shim itself has.
            ended = shim.idle() => if let Err(error) = ended {
                warn!(error = telemetry::error_chain(&error), "the shim of an idle workspace died");
                place.drop_shim().await;
            },
            () = closing.cancelled() => {
                place.drop_shim().await;
                return Ok(());
            }
        }
        place.rest();
    }
}

/// Starts a shim for builds: a process tree that was frozen as a whole when its lease expired
/// dies without running again.
async fn start_shim(program: &Path) -> Result<Shim, ShimError> {
    Shim::start_with(program, &Options { kernel_deadline: true, ..Options::default() }).await
}

impl Place {
    /// The workspace's shim, started if necessary: ahead of the first build, which then does not wait for it. `None`
    /// after a failed start and a pause.
    async fn ready(&mut self, ears: &mut Ears) -> Option<&mut Shim> {
        let slots = &self.shared.slots;
        if self.shim.is_none() {
            match start_shim(&self.program).await {
                Ok(started) => self.shim = Some(started),
                Err(error) => {
                    warn!(error = telemetry::error_chain(&error), "cannot start a shim");
                    slots.set(self.number, Phase::Broken);
                    slots.announce.notify_one();
                    tokio::select! {
                        () = slots.closing.cancelled() => {}
                        () = tokio::time::sleep(SHIM_RETRY) => {}
                    }
                    if let Some(handed) = ears.offers.recv().now_or_never().flatten() {
                        let _ = handed.verdict.send(OfferVerdict::Busy);
                    }
                    return None;
                }
            }
            if slots.is_broken(self.number) {
                self.rest();
                self.shared.slots.announce.notify_one();
            }
        }
        self.shim.as_mut()
    }

    /// Marks the workspace as idle and publishes its warmth.
    fn rest(&self) {
        let tools = self.shim.as_ref().is_some_and(Shim::has_survivors);
        let keys = self.left.as_ref().map(|left| left.keys.clone());
        let warmth = Warmth { keys, tools_since: tools.then_some(self.since) };
        self.shared.slots.set(self.number, Phase::Idle(warmth));
        if tools && self.shared.slots.is_draining() {
            drop(self.shared.slots.shut_down(self.number, "drain"));
        }
    }

    /// Claims and runs the assigned build.
    async fn take(&mut self, assignment: Assignment, ears: &mut Ears) {
        let Assignment { offer, key, record, verdict } = assignment;
        let stop = Stop::default();
        let slots = &self.shared.slots;
        let attempt = record.as_ref().map_or(Attempt::FIRST, |(_, record)| record.attempt);
        slots.set(self.number, Phase::Busy { key: key.clone(), attempt, stop: stop.clone() });
        // These orders were meant for an idle workspace.
        while ears.orders.try_recv().is_ok() {}
        let found = self.left.as_ref().map(|left| (&left.group, &left.keys));
        let claimed = match claim::claim(&self.shared, &offer, &key, record, found).await {
            Ok(claimed) => claimed,
            Err(refusal) => {
                debug!(%key, ?refusal, "build not claimed");
                let _ = verdict.send(refusal);
                return;
            }
        };
        let _ = verdict.send(OfferVerdict::Started);
        // The record may have been read only during the claim.
        let attempt = claimed.record.attempt;
        slots.set(self.number, Phase::Busy { key, attempt, stop: stop.clone() });
        let kind = claimed.record.invocation().and_then(|run| run.workspace_kind);
        let mut left = self.left.take();
        if !matches!(kind, Some(WorkspaceKind::Exact | WorkspaceKind::Prefix))
            && let Some(evicted) = left.take()
        {
            self.evict(evicted).await;
        }
        let Some(shim) = self.shim.as_mut() else { return };
        let after = run::run(&self.shared, self.number, shim, left, claimed, stop).await;
        self.left = after.left;
        self.since = Instant::now();
        if !after.shim_lives {
            self.shim = None;
        }
    }

    /// Removes everything that a build left.
    async fn evict(&mut self, left: Left) {
        if let Some(shim) = &mut self.shim {
            if shim.has_survivors() {
                count(Counter::ToolServersStopped, &[(Label::Reason, "evicted")], 1);
            }
            if let Err(error) = shim.forget(Duration::ZERO).await {
                warn!(error = telemetry::error_chain(&error), "a shim failed to end its remaining processes");
                let _ = shim.end().await;
                // The run reports a shim that cannot be started.
                if let Ok(started) = start_shim(&self.program).await {
                    *shim = started;
                }
            }
        }
        left.folder.clear(false);
    }

    /// Shuts the tool servers down and keeps the files. A build that arrives during the shutdown does
    /// not wait for it.
    async fn obey(&mut self, order: ShutDown, ears: &mut Ears) {
        if order.files
            && let Some(left) = self.left.take()
        {
            info!(workspace = self.number, why = order.why, "emptying an idle workspace");
            self.evict(left).await;
            self.shared.slots.announce.notify_one();
        }
        let Some(shim) = self.shim.as_mut().filter(|shim| shim.has_survivors()) else { return };
        info!(workspace = self.number, why = order.why, "shutting down idle tool servers");
        let (outcome, offer) = tokio::select! {
            outcome = shim.forget(TOOL_GRACE) => (outcome, None),
            offer = ears.offers.recv() => (Ok(()), offer),
        };
        let outcome = if offer.is_some() { shim.forget(Duration::ZERO).await } else { outcome };
        count(Counter::ToolServersStopped, &[(Label::Reason, order.why)], 1);
        if outcome.is_err() {
            self.drop_shim().await;
        }
        self.rest();
        let _ = order.done.send(());
        match offer {
            Some(offer) if self.shim.is_some() => Box::pin(self.take(offer, ears)).await,
            Some(offer) => drop(offer.verdict.send(OfferVerdict::Busy)),
            None => {}
        }
    }

    /// Ends the shim and all processes it keeps.
    async fn drop_shim(&mut self) {
        if let Some(mut shim) = self.shim.take()
            && let Err(error) = shim.end().await
        {
            debug!(error = telemetry::error_chain(&error), "cannot confirm the end of a shim");
        }
    }
}
