//! Steps between two effects at which a test can have the process die.
//!
//! `FOREBAY_CRASH_AT=NAME` makes the process kill itself with SIGKILL when it comes to that step. Without the
//! variable a step costs one load.

use std::sync::OnceLock;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

macro_rules! steps {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),* $(,)?) => {
        /// A place between two effects of a build's way.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Step { $($(#[$doc])* $variant),* }

        impl Step {
            /// All of them, in the order of a build's way.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// `SERVICE.STEP`
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The service that takes it.
            pub fn service(self) -> &'static str {
                self.name().split('.').next().unwrap_or_default()
            }
        }
    };
}

steps! {
    /// A request was pulled; nothing was written.
    RequestPulled = "enqueuer.request-pulled",
    /// BUILD_ENQUEUED is written; the request is not acknowledged.
    EnqueuedWritten = "enqueuer.enqueued-written",
    /// A rejection is published; its FINISHED is not.
    RejectionPublished = "enqueuer.rejection-published",
    /// BUILD_ENQUEUED is written; the caller has no reply.
    CreateWritten = "enqueuer.create-written",
    /// FINISHED (cancelled) is written; the lease stands, the worker knows nothing.
    CancelWritten = "enqueuer.cancel-written",
    /// The lease is revoked; the worker knows nothing.
    CancelRevoked = "enqueuer.cancel-revoked",
    /// Events were read and not applied.
    EventsRead = "dispatcher.events-read",
    /// Events were applied; nothing was dispatched.
    EventsApplied = "dispatcher.events-applied",
    /// A rebuild has begun and is not finished.
    RebuildBegun = "dispatcher.rebuild-begun",
    /// Builds were picked and not committed.
    Picked = "dispatcher.picked",
    /// Picks are committed and not offered.
    Committed = "dispatcher.committed",
    /// Offers were answered and not settled.
    Offered = "dispatcher.offered",
    /// An offer came; nothing was done.
    OfferReceived = "worker.offer-received",
    /// The lease is held; INVOCATION_STARTED is not written.
    LeaseHeld = "worker.lease-held",
    /// INVOCATION_STARTED is written; nothing runs.
    StartWritten = "worker.start-written",
    /// The workspace is prepared; the command does not run.
    WorkspacePrepared = "worker.workspace-prepared",
    /// The command runs.
    CommandSpawned = "worker.command-spawned",
    /// A chunk of output is written.
    ChunkWritten = "worker.chunk-written",
    /// The lease is renewed.
    LeaseRenewed = "worker.lease-renewed",
    /// The command ended; its outputs are not kept.
    CommandEnded = "worker.command-ended",
    /// The outputs are kept; FINISHED is not written.
    OutputsKept = "worker.outputs-kept",
    /// FINISHED is written; the lease is held.
    FinishWritten = "worker.finish-written",
    /// The lease is released; the workspace is not cleaned.
    LeaseReleased = "worker.lease-released",
    /// Records of executions were read and not applied.
    ActionEventsRead = "scheduler.events-read",
    /// Records were applied; no reservations were sent, no executor told of ends that passed it by.
    ActionEventsApplied = "scheduler.events-applied",
    /// A rebuild of the action index has begun and is not finished.
    ActionRebuildBegun = "scheduler.rebuild-begun",
    /// Reservations were sent; nothing was claimed.
    ActionReserved = "scheduler.reserved",
    /// Executions were picked for executors that ask; the index does not know.
    ActionPicked = "scheduler.picked",
    /// The index has them as claimed; the executors do not know.
    ActionCommitted = "scheduler.committed",
    /// Claims were answered; nothing else was done.
    ActionClaimsAnswered = "scheduler.claims-answered",
    /// An executor's lease ended; nothing was written.
    ExecutorLossHeard = "scheduler.loss-heard",
    /// What a lost executor had is queued again or ended; the message is not acknowledged.
    ExecutorLossWritten = "scheduler.loss-written",
    /// Executions that take long were found; no copy was started.
    ActionHedgeFound = "scheduler.hedge-found",
    /// Executions that waited too long were found; nothing was written.
    ActionOverdueFound = "scheduler.overdue-found",
    /// An overdue execution is ended; the others found with it are not.
    ActionOverdueWritten = "scheduler.overdue-written",
    /// Reservations came; nothing was claimed.
    ActionReservationReceived = "executor.reservation-received",
    /// Executions are the executor's; it has none in hand.
    ActionClaimAnswered = "executor.claim-answered",
    /// Executions are in hand; nothing is done for them.
    ActionTaken = "executor.taken",
    /// The input root is made; the command does not run.
    ActionInputsReady = "executor.inputs-ready",
    /// The command ended; its outputs are not kept.
    ActionCommandEnded = "executor.command-ended",
    /// The outputs are kept; the action cache does not know.
    ActionOutputsKept = "executor.outputs-kept",
    /// The action cache has the result; ACTION_FINISHED is not written.
    ActionCached = "executor.cached",
    /// The end of its copy is written; it is still in hand.
    ActionResultWritten = "executor.result-written",
    /// An expired lease was heard of; nothing was written.
    ExpiryHeard = "reaper.expiry-heard",
    /// The build is queued again or ended; the message is not acknowledged.
    VerdictWritten = "reaper.verdict-written",
    /// A sweep found a build without lease; nothing was written.
    OrphanFound = "reaper.orphan-found",
    /// A build that waited or ran too long was found; nothing was written.
    OverdueFound = "reaper.overdue-found",
    /// An overdue build is ended; its lease stands, its worker knows nothing.
    OverdueWritten = "reaper.overdue-written",
}

/// Dies here when the environment says so.
pub fn crash_point(step: Step) {
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var("FOREBAY_CRASH_AT").ok());
    if chosen.as_deref() == Some(step.name()) {
        tracing::warn!(step = step.name(), "dying here as FOREBAY_CRASH_AT says");
        let _ = kill(Pid::this(), Signal::SIGKILL);
        // The signal is on its way; no further effect may happen.
        loop {
            std::thread::park();
        }
    }
}
