//! The end of a run: publishes INVOCATION_FINISHED or requeues the build, then releases the lease.

use std::time::Duration;

use bus::{BusError, Written};
use jobs::JobEnd;
use model::{
    BuildRecord, BuildResult, LogSummary, Outcome, Reason, ReasonCode, Sequence, ToolFacts, WorkspaceKeys,
};
use policy::{AfterLoss, after_loss};
use service::{Step, crash_point, trace_run_ended};
use telemetry::metrics::{Counter, Histogram, Label, count, observe};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{ending::Ending, lease_keeper::LeaseKeeper, outputs::Outputs, shared::Shared, usage::UsedEsu};

/// Time limit for the write. The lease is renewed during that time; if it is lost, the write loses too.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time limit for the store to renew what the result names.
const RENEWAL: Duration = Duration::from_secs(3);
/// Maximum number of missing blobs that a line of the log names.
const NAMED: usize = 10;

/// A run whose end is to be published.
pub(crate) struct Finish<'a> {
    pub(crate) shared: &'a Shared,
    /// Number of the workspace.
    pub(crate) number: u16,
    pub(crate) record: &'a BuildRecord,
    /// Position of its INVOCATION_STARTED.
    pub(crate) started_at: Sequence,
}

/// The results kept from a run.
#[derive(Default)]
pub(crate) struct RunResults {
    pub(crate) preparation_seconds: Option<f64>,
    pub(crate) outputs: Outputs,
    pub(crate) log: LogSummary,
    /// Executor usage of the run.
    pub(crate) used: UsedEsu,
    /// Keys by which the next build finds the warm workspace, if it is kept.
    pub(crate) left: Option<WorkspaceKeys>,
    /// What the calls of Bazel reported.
    pub(crate) tool: Option<Box<ToolFacts>>,
    /// The result of its job, if it was a job and its tasks were started.
    pub(crate) job: Option<Box<JobEnd>>,
}

impl Finish<'_> {
    /// Publishes how the run ended, unless the build belongs to another attempt, and releases the lease. Returns
    /// whether the build was ours to the end: otherwise nothing of it may be kept.
    pub(crate) async fn write(self, lease: &mut LeaseKeeper, ending: Ending, kept: RunResults) -> bool {
        let workspaces = &self.shared.workspaces;
        let left = kept.left.clone();
        let Some(next) = self.next(ending, kept) else {
            lease.finish().await;
            // The dispatchers were not notified that the workspace is free.
            workspaces.set_ending(self.number, None);
            workspaces.announce.notify_one();
            return false;
        };
        self.renew_blobs(&next).await;
        let written = self.transition(&next).await;
        crash_point(Step::FinishWritten);
        let won = matches!(written, Ok(Written::Won(_)));
        let left = left.filter(|_| won);
        // Dispatchers derive the warmth of the workspace from the result; any other state must be announced.
        let expected_warm =
            !next.build.workspace.is_fresh() && next.result().is_some_and(|it| it.exit_code.is_some());
        let announced = won && next.result().is_some() && expected_warm == left.is_some();
        workspaces.set_ending(self.number, left);
        if !announced {
            workspaces.announce.notify_one();
        }
        let lease = lease.finish().await;
        // If the result could not be written, the lease expires and the build runs again: running twice
        // is better than never.
        if written.is_ok()
            && let Err(error) = self.shared.context.bus.leases().release(&lease).await
        {
            let id = self.record.build.id;
            debug!(build = %id, error = telemetry::error_chain(&error), "cannot release the lease; it will expire");
        }
        crash_point(Step::LeaseReleased);
        won
    }

    /// Makes the store keep what the result names for `cas_keep_min_seconds`: until then its keeper reads the record.
    async fn renew_blobs(&self, next: &BuildRecord) {
        let blobs = if next.result().is_some() { next.blobs() } else { Vec::new() };
        if blobs.is_empty() {
            return;
        }
        let id = next.build.id;
        match tokio::time::timeout(RENEWAL, self.shared.cas.missing(&blobs)).await {
            Ok(Ok(missing)) if missing.is_empty() => {}
            Ok(Ok(missing)) => {
                let some = missing.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(" ");
                warn!(build = %id, count = missing.len(), some, "the result names blobs that the store does not have");
            }
            Ok(Err(error)) => {
                let error = telemetry::error_chain(&error);
                warn!(build = %id, error, "cannot renew the blobs that the result names");
            }
            Err(_) => {
                let seconds = RENEWAL.as_secs();
                warn!(build = %id, seconds, "the store did not renew the blobs that the result names in time");
            }
        }
    }

    async fn transition(&self, next: &BuildRecord) -> Result<Written, BusError> {
        let bus = &self.shared.context.bus;
        let id = self.record.build.id;
        let begun = Instant::now();
        let mut next = std::borrow::Cow::Borrowed(next);
        let mut written = bus.transition(next.as_ref(), self.started_at, PATIENCE).await;
        if let Err(BusError::TooLarge { what }) = &written {
            let message = format!("the result could not be stored: {what} is too large");
            let result = BuildResult::without_run(Outcome::Failed, ReasonCode::OutputNotKept, message);
            next = std::borrow::Cow::Owned(self.record.finished(result, bus.now()));
            written = bus.transition(next.as_ref(), self.started_at, PATIENCE).await;
        }
        record_call(&written, begun.elapsed());
        match &written {
            Ok(Written::Won(_)) => {
                record_metrics(&next);
                trace_run_ended(bus, self.record, &next);
            }
            Ok(Written::Lost(_)) => debug!(build = %id, "another process already ended this run"),
            Err(error) => {
                warn!(build = %id, error = telemetry::error_chain(error), "cannot publish the result");
            }
        }
        written
    }

    /// The record to write; `None` when the build belongs to another attempt.
    fn next(&self, ending: Ending, kept: RunResults) -> Option<BuildRecord> {
        let RunResults { preparation_seconds, outputs, log, used, left: _, tool, job } = kept;
        if let Ending::GiveBack(reason) | Ending::NotFetched(reason) = ending {
            return Some(give_back(self.record, reason, self.shared));
        }
        let result = ending.result(self.record.build.timeout_seconds, job.as_deref())?;
        let mut result = BuildResult {
            preparation_seconds,
            outputs: outputs.files,
            outputs_missing: outputs.missing.into_iter().map(|missing| missing.glob).collect(),
            outputs_not_kept: outputs.not_kept,
            outputs_not_kept_count: outputs.not_kept_count,
            log,
            usage: used.all,
            on_executors: used.on_executors,
            tool,
            ..result
        };
        if let Some(job) = job {
            result.command_started_at_us = job.started_at_us;
            result.wall_seconds = job.wall.as_secs_f64();
            result.cpu_seconds = job.cpu.as_secs_f64();
            result.peak_memory_bytes = job.peak_memory_bytes;
            result.job = Some(Box::new(job.result));
        }
        Some(self.record.finished(result, self.shared.context.bus.now()))
    }
}

fn give_back(record: &BuildRecord, reason: Reason, shared: &Shared) -> BuildRecord {
    let next = after_loss(record, shared.id.clone(), reason, shared.context.bus.now());
    match next {
        AfterLoss::Requeue(record) | AfterLoss::GiveUp(record) => *record,
    }
}

/// Counts the end of a run, or its return to the queue, as a call of the API.
fn record_call(written: &Result<Written, BusError>, took: Duration) {
    let status = match written {
        Ok(Written::Won(_)) => "ok",
        Ok(Written::Lost(_)) => "lost",
        Err(_) => "unavailable",
    };
    count(Counter::ApiRequests, &[(Label::Endpoint, "finish"), (Label::Status, status)], 1);
    observe(Histogram::ApiSeconds, &[(Label::Endpoint, "finish")], took);
}

fn record_metrics(record: &BuildRecord) {
    let priority = (Label::Priority, record.build.priority.as_str());
    match record.result() {
        Some(result) => {
            let wall = Duration::from_secs_f64(result.wall_seconds.max(0.0));
            count(Counter::BuildsFinished, &[(Label::Outcome, result.outcome.as_str()), priority], 1);
            observe(Histogram::BuildRunSeconds, &[priority], wall);
        }
        None => count(Counter::BuildsRequeued, &[(Label::Reason, "given_back")], 1),
    }
}
