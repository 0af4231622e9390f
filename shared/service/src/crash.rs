//! Steps between two effects at which a test can make the process die.
//!
//! `FOREBAY_CRASH_AT=NAME` makes the process kill itself with SIGKILL when it reaches that step. Without the variable,
//! a step costs one load.

use std::sync::OnceLock;

use invariant::Present as _;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

macro_rules! steps {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),* $(,)?) => {
        /// A step between two effects of a build or an execution.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Step { $($(#[$doc])* $variant),* }

        impl Step {
            /// All steps, in the order of a build's life.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Name as in `FOREBAY_CRASH_AT`: `SERVICE.STEP`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Name of the service that performs the step.
            pub fn service(self) -> &'static str {
                self.name().split('.').next().present("the service in the name of a step")
            }
        }
    };
}

steps! {
    /// A request was pulled; nothing was written.
    RequestPulled = "enqueuer.request-pulled",
    /// BUILD_ENQUEUED is written; the request is not acknowledged.
    EnqueuedWritten = "enqueuer.enqueued-written",
    /// A rejection is published; its INVOCATION_FINISHED is not.
    RejectionPublished = "enqueuer.rejection-published",
    /// BUILD_ENQUEUED is written; the caller has no reply.
    CreateWritten = "enqueuer.create-written",
    /// INVOCATION_FINISHED (cancelled) is written; the lease is valid, the worker is not notified.
    CancelWritten = "enqueuer.cancel-written",
    /// The lease is revoked; the worker is not notified.
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
    /// Offers were answered; the answers are not processed.
    Offered = "dispatcher.offered",
    /// An offer was received; nothing was done.
    OfferReceived = "worker.offer-received",
    /// The lease is held; INVOCATION_STARTED is not written.
    LeaseHeld = "worker.lease-held",
    /// INVOCATION_STARTED is written; nothing runs.
    StartWritten = "worker.start-written",
    /// The workspace is prepared; the command does not run.
    WorkspacePrepared = "worker.workspace-prepared",
    /// The command is running; no output is written.
    CommandSpawned = "worker.command-spawned",
    /// A chunk of output is written.
    ChunkWritten = "worker.chunk-written",
    /// The lease has been renewed.
    LeaseRenewed = "worker.lease-renewed",
    /// The command ended; its outputs are not stored.
    CommandEnded = "worker.command-ended",
    /// The outputs are stored; INVOCATION_FINISHED is not written.
    OutputsKept = "worker.outputs-kept",
    /// INVOCATION_FINISHED is written; the lease is held.
    FinishWritten = "worker.finish-written",
    /// The lease is released; the workspace is not cleaned.
    LeaseReleased = "worker.lease-released",
    /// Records of executions were read and not applied.
    ActionEventsRead = "scheduler.events-read",
    /// Records were applied; nothing was granted, and executors were not notified of executions that ended elsewhere.
    ActionEventsApplied = "scheduler.events-applied",
    /// A rebuild of the action index has begun and is not finished.
    ActionRebuildBegun = "scheduler.rebuild-begun",
    /// Executions were picked for executors with room; the index is not updated.
    ActionPicked = "scheduler.picked",
    /// The index has them as claimed; the executors are not notified.
    ActionCommitted = "scheduler.committed",
    /// Grants were sent; nothing else was done.
    ActionGrantsSent = "scheduler.grants-sent",
    /// The lease of an executor expired; nothing was written.
    ExecutorLossHeard = "scheduler.loss-heard",
    /// Executions of a lost executor are requeued or ended; the message is not acknowledged.
    ExecutorLossWritten = "scheduler.loss-written",
    /// Slow executions were found; no copy was started.
    ActionHedgeFound = "scheduler.hedge-found",
    /// Executions that waited too long were found; nothing was written.
    ActionOverdueFound = "scheduler.overdue-found",
    /// An overdue execution is ended; the others found with it are not.
    ActionOverdueWritten = "scheduler.overdue-written",
    /// Executions are claimed for the executor; it has not recorded them.
    ActionGrantReceived = "executor.grant-received",
    /// The executor has recorded its claims; nothing is done for them.
    ActionTaken = "executor.taken",
    /// The input root is complete; the command does not run.
    ActionInputsReady = "executor.inputs-ready",
    /// The command ended; its outputs are not stored.
    ActionCommandEnded = "executor.command-ended",
    /// The outputs are stored; the action cache is not updated.
    ActionOutputsKept = "executor.outputs-kept",
    /// The action cache has the result; ACTION_FINISHED is not written.
    ActionCached = "executor.cached",
    /// The end of its copy is written; the executor still lists it.
    ActionResultWritten = "executor.result-written",
    /// An expired lease was reported; nothing was written.
    ExpiryHeard = "reaper.expiry-heard",
    /// The build is requeued or ended; the message is not acknowledged.
    VerdictWritten = "reaper.verdict-written",
    /// A sweep found a build without a lease; nothing was written.
    OrphanFound = "reaper.orphan-found",
    /// A build that waited or ran too long was found; nothing was written.
    OverdueFound = "reaper.overdue-found",
    /// An overdue build is ended; its lease is valid, its worker is not notified.
    OverdueWritten = "reaper.overdue-written",
}

/// Kills the process if the environment selects this step. A release build never does.
pub fn crash_point(step: Step) {
    if cfg!(debug_assertions) {
        die_if_selected(step);
    }
}

fn die_if_selected(step: Step) {
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var("FOREBAY_CRASH_AT").ok());
    if chosen.as_deref() == Some(step.name()) {
        tracing::warn!(step = step.name(), "killing this process at the step selected by FOREBAY_CRASH_AT");
        // If this fails, the loop below still prevents further effects.
        let _ = kill(Pid::this(), Signal::SIGKILL);
        // The signal is on its way; no further effect may happen.
        loop {
            std::thread::park();
        }
    }
}
