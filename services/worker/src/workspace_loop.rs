//! The loop of one workspace.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt as _;
use invariant::impossible;
use model::{Attempt, Group, OfferVerdict, WorkspaceKind};
use sandbox::WorkspaceLimits;
use service::ServiceError;
use telemetry::metrics::{Counter, Label, count};
use tracing::{debug, info, warn};

use crate::{
    claim,
    owner::WorkspaceUsers,
    run,
    shared::Shared,
    stop::Stop,
    warm::WarmWorkspace,
    workspace::forget,
    workspace_shim::WorkspaceShim,
    workspaces::{Assignment, Phase, ShutDown, Warmth, WorkspaceReceivers},
};

/// Time between two attempts to start a shim.
const SHIM_RETRY: Duration = Duration::from_secs(5);
/// Time that a tool server has to save its state.
const TOOL_GRACE: Duration = Duration::from_secs(10);

struct WorkspaceLoop {
    shared: Arc<Shared>,
    number: u16,
    program: PathBuf,
    limits: Arc<WorkspaceLimits>,
    shim: Option<WorkspaceShim>,
    /// Files and keys of the last build, if another build can reuse them.
    left: Option<WarmWorkspace>,
    /// When that build ended.
    since: Instant,
    /// Group of the last build.
    group: Option<Group>,
}

/// The loop of one workspace: claims the builds offered to it and runs them.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    number: u16,
    program: PathBuf,
    limits: Arc<WorkspaceLimits>,
) -> Result<(), ServiceError> {
    let mut receivers = shared
        .workspaces
        .take_receivers(number)
        .ok_or_else(|| ServiceError::failed("a workspace", "the workspace already has a loop"))?;
    let since = Instant::now();
    let mut workspace =
        WorkspaceLoop { shared, number, program, limits, shim: None, left: None, since, group: None };
    loop {
        let closing = workspace.shared.workspaces.closing.clone();
        let Some(shim) = workspace.ready(&mut receivers).await else { continue };
        tokio::select! {
            Some(assignment) = receivers.offers.recv() => workspace.run_build(assignment, &mut receivers).await,
            Some(order) = receivers.orders.recv() => workspace.shut_down_tools(order, &mut receivers).await,
            // The remaining processes have ended, or the shim itself has.
            ended = shim.idle() => if let Err(error) = ended {
                warn!(error = telemetry::error_chain(&error), "the shim of an idle workspace died");
                workspace.drop_shim().await;
            },
            () = closing.cancelled() => {
                workspace.drop_shim().await;
                return Ok(());
            }
        }
        workspace.set_idle();
    }
}

impl WorkspaceLoop {
    /// The workspace's shim, started if necessary: ahead of the first build, which then does not wait for it. `None`
    /// after a failed start and a pause.
    async fn ready(&mut self, receivers: &mut WorkspaceReceivers) -> Option<&mut WorkspaceShim> {
        let workspaces = &self.shared.workspaces;
        if self.shim.is_none() {
            let users = WorkspaceUsers::of(&self.shared.settings, self.number);
            match WorkspaceShim::start(&self.program, self.limits.clone(), users).await {
                Ok(started) => {
                    self.shim = Some(started);
                    self.set_idle();
                    workspaces.announce.notify_one();
                }
                Err(error) => {
                    warn!(error = telemetry::error_chain(&error), "cannot start a shim");
                    workspaces.set(self.number, Phase::Broken);
                    workspaces.announce.notify_one();
                    tokio::select! {
                        () = workspaces.closing.cancelled() => {}
                        () = tokio::time::sleep(SHIM_RETRY) => {}
                    }
                    if let Some(handed) = receivers.offers.recv().now_or_never().flatten() {
                        // The worker shuts down if the offer's handler has gone.
                        let _ = handed.verdict.send(OfferVerdict::Busy);
                    }
                    return None;
                }
            }
        }
        self.shim.as_mut()
    }

    /// Marks the workspace as idle, or as starting if it has no shim, and publishes its warmth.
    fn set_idle(&self) {
        let tools = self.shim.as_ref().is_some_and(WorkspaceShim::has_survivors);
        let keys = self.left.as_ref().map(|left| left.keys.clone());
        let warmth = Warmth { keys, tools_since: tools.then_some(self.since) };
        let phase = if self.shim.is_some() { Phase::Idle(warmth) } else { Phase::Starting(warmth) };
        self.shared.workspaces.set(self.number, phase);
        match &self.left {
            Some(left) if tools => self.shared.usage.leave_tools(self.number, &left.group, &self.limits),
            Some(_) | None => self.shared.usage.end_tools(self.number),
        }
        if tools && self.shared.workspaces.is_draining() {
            // The loop of this workspace carries out the order; its end is not awaited.
            drop(self.shared.workspaces.shut_down(self.number, "drain"));
        }
    }

    /// Claims and runs the assigned build.
    async fn run_build(&mut self, assignment: Assignment, receivers: &mut WorkspaceReceivers) {
        let Assignment { offer, key, record, verdict } = assignment;
        let stop = Stop::default();
        let workspaces = &self.shared.workspaces;
        let attempt = record.as_ref().map_or(Attempt::FIRST, |(_, record)| record.attempt);
        workspaces.set(self.number, Phase::Busy { key: key.clone(), attempt, stop: stop.clone() });
        // These orders were meant for an idle workspace.
        while receivers.orders.try_recv().is_ok() {}
        let found = self.left.as_ref().map(|left| (&left.group, &left.keys));
        let claimed = match claim::claim(&self.shared, &offer, &key, record, found).await {
            Ok(claimed) => claimed,
            Err(refusal) => {
                debug!(%key, ?refusal, "build not claimed");
                // The worker shuts down if the offer's handler has gone.
                let _ = verdict.send(refusal);
                return;
            }
        };
        // The worker shuts down if the offer's handler has gone.
        let _ = verdict.send(OfferVerdict::Started);
        // The record may have been read only during the claim.
        let attempt = claimed.record.attempt;
        workspaces.set(self.number, Phase::Busy { key, attempt, stop: stop.clone() });
        let kind = claimed.record.invocation().and_then(|run| run.workspace_kind);
        let mut left = self.left.take();
        if !matches!(kind, Some(WorkspaceKind::Exact | WorkspaceKind::Prefix))
            && let Some(evicted) = left.take()
        {
            self.evict(evicted).await;
        }
        let group = Some(claimed.record.build.group.clone());
        let before = std::mem::replace(&mut self.group, group);
        if before.is_some() && before != self.group {
            self.renew().await;
        }
        let Some(shim) = self.shim.take() else {
            impossible!("workspace {} claimed a build without a shim", self.number);
            return;
        };
        let after = run::run(&self.shared, self.number, shim, left, claimed, stop).await;
        (self.shim, self.left) = (after.shim, after.left);
        self.since = Instant::now();
    }

    /// Removes everything that a build left.
    async fn evict(&mut self, left: WarmWorkspace) {
        if let Some(shim) = &mut self.shim {
            if shim.has_survivors() {
                count(Counter::ToolServersStopped, &[(Label::Reason, "evicted")], 1);
            }
            if !forget(shim).await {
                self.restart().await;
            }
        }
        left.folder.clear(false);
    }

    /// Gives the next group a new sandbox and new folders. A process of another workspace may have the old ones open: builds
    /// with the network of the machine can pass descriptors to each other over sockets without a file.
    async fn renew(&mut self) {
        if let Some(shim) = &mut self.shim
            && let Err(error) = shim.leave_sandbox().await
        {
            warn!(error = telemetry::error_chain(&error), "cannot end the sandbox of another group");
            self.restart().await;
        }
        self.shared.folder.renew(self.number);
    }

    /// Replaces the shim. The run reports one that cannot be started.
    async fn restart(&mut self) {
        let users = WorkspaceUsers::of(&self.shared.settings, self.number);
        if let Ok(started) = WorkspaceShim::start(&self.program, self.limits.clone(), users).await {
            self.shim = Some(started);
        }
    }

    /// Shuts the tool servers down and keeps the files. A build that arrives during the shutdown does
    /// not wait for it.
    async fn shut_down_tools(&mut self, order: ShutDown, receivers: &mut WorkspaceReceivers) {
        if order.files
            && let Some(left) = self.left.take()
        {
            info!(workspace = self.number, why = order.why, "emptying an idle workspace");
            self.evict(left).await;
            self.shared.workspaces.announce.notify_one();
        }
        let Some(shim) = self.shim.as_mut().filter(|shim| shim.has_survivors()) else { return };
        info!(workspace = self.number, why = order.why, "shutting down idle tool servers");
        let (outcome, offer) = tokio::select! {
            outcome = shim.forget(TOOL_GRACE) => (outcome, None),
            offer = receivers.offers.recv() => (Ok(()), offer),
        };
        let outcome = if offer.is_some() { shim.forget(Duration::ZERO).await } else { outcome };
        count(Counter::ToolServersStopped, &[(Label::Reason, order.why)], 1);
        if outcome.is_err() {
            self.drop_shim().await;
        }
        self.set_idle();
        // No task waits for the end of an order to drain or to empty the workspace.
        let _ = order.done.send(());
        match offer {
            Some(offer) if self.shim.is_some() => Box::pin(self.run_build(offer, receivers)).await,
            Some(offer) => {
                // The worker shuts down if the offer's handler has gone.
                let _ = offer.verdict.send(OfferVerdict::Busy);
            }
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
