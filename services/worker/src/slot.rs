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

/// How soon a shim that did not start is tried again.
const SHIM_RETRY: Duration = Duration::from_secs(5);
/// How long a tool server may take to write down what it knows.
const TOOL_GRACE: Duration = Duration::from_secs(10);

/// One workspace.
struct Place {
    shared: Arc<Shared>,
    number: u16,
    program: PathBuf,
    shim: Option<Shim>,
    /// What the last build left, if that is of use to another.
    left: Option<Left>,
    /// When that was.
    since: Instant,
}

/// The loop of one workspace: claims what it is handed and runs it.
pub(crate) async fn serve(shared: Arc<Shared>, number: u16, program: PathBuf) -> Result<(), ServiceError> {
    let mut ears = shared
        .slots
        .take_ears(number)
        .ok_or_else(|| ServiceError::failed("a workspace", "it is served already"))?;
    let mut place = Place { shared, number, program, shim: None, left: None, since: Instant::now() };
    loop {
        let closing = place.shared.slots.closing.clone();
        let Some(shim) = place.ready(&mut ears).await else { continue };
        tokio::select! {
            Some(assignment) = ears.offers.recv() => place.take(assignment, &mut ears).await,
            Some(order) = ears.orders.recv() => place.obey(order, &mut ears).await,
            // What it kept has ended, or the shim itself.
            ended = shim.idle() => if let Err(error) = ended {
                warn!(error = telemetry::error_chain(&error), "the shim of an idle workspace ended");
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

/// A shim for builds: a tree that was stopped as a whole when its lease ran out dies without having run again.
async fn start_shim(program: &Path) -> Result<Shim, ShimError> {
    Shim::start_with(program, &Options { kernel_deadline: true, ..Options::default() }).await
}

impl Place {
    /// The workspace's shim, started if there is none: ahead of the first build, which then does not wait for it. `None`
    /// when it did not start and some time has passed.
    async fn ready(&mut self, ears: &mut Ears) -> Option<&mut Shim> {
        let slots = &self.shared.slots;
        if self.shim.is_none() {
            match start_shim(&self.program).await {
                Ok(started) => self.shim = Some(started),
                Err(error) => {
                    warn!(error = telemetry::error_chain(&error), "a shim does not start");
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

    /// Says that it is idle, and what it has.
    fn rest(&self) {
        let tools = self.shim.as_ref().is_some_and(Shim::has_survivors);
        let keys = self.left.as_ref().map(|left| left.keys.clone());
        let warmth = Warmth { keys, tools_since: tools.then_some(self.since) };
        self.shared.slots.set(self.number, Phase::Idle(warmth));
        if tools && self.shared.slots.is_draining() {
            drop(self.shared.slots.shut_down(self.number, "drain"));
        }
    }

    /// Claims and runs what was handed.
    async fn take(&mut self, assignment: Assignment, ears: &mut Ears) {
        let Assignment { offer, key, record, verdict } = assignment;
        let stop = Stop::default();
        let slots = &self.shared.slots;
        let attempt = record.as_ref().map_or(Attempt::FIRST, |(_, record)| record.attempt);
        slots.set(self.number, Phase::Busy { key: key.clone(), attempt, stop: stop.clone() });
        // Meant for who was idle.
        while ears.orders.try_recv().is_ok() {}
        let found = self.left.as_ref().map(|left| (&left.group, &left.keys));
        let claimed = match claim::claim(&self.shared, &offer, &key, record, found).await {
            Ok(claimed) => claimed,
            Err(refusal) => {
                debug!(%key, ?refusal, "not claimed");
                let _ = verdict.send(refusal);
                return;
            }
        };
        let _ = verdict.send(OfferVerdict::Started);
        // The record may have been read only now.
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

    /// Leaves nothing of what a build left.
    async fn evict(&mut self, left: Left) {
        if let Some(shim) = &mut self.shim {
            if shim.has_survivors() {
                count(Counter::ToolServersStopped, &[(Label::Reason, "evicted")], 1);
            }
            if let Err(error) = shim.forget(Duration::ZERO).await {
                warn!(error = telemetry::error_chain(&error), "a shim ended with what it kept");
                let _ = shim.end().await;
                // What cannot be started is seen by the run.
                if let Ok(started) = start_shim(&self.program).await {
                    *shim = started;
                }
            }
        }
        left.folder.clear(false);
    }

    /// Shuts the tool servers down, and keeps what is on disk. A build that comes meanwhile does not wait for them.
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

    /// Ends the shim and all that it kept.
    async fn drop_shim(&mut self) {
        if let Some(mut shim) = self.shim.take()
            && let Err(error) = shim.end().await
        {
            debug!(error = telemetry::error_chain(&error), "the end of a shim was not seen");
        }
    }
}
