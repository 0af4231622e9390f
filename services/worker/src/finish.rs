//! The last word of a run: INVOCATION_FINISHED, or the build goes back; then the lease is released.

use std::time::Duration;

use bus::Written;
use model::{
    BuildRecord, BuildResult, LogSummary, Millis, Outcome, OutputFile, Reason, ReasonCode, Sequence,
};
use policy::{AfterLoss, after_loss};
use service::{Step, crash_point};
use telemetry::metrics::{Counter, Histogram, Label, count, observe};
use tracing::{debug, warn};

use crate::{
    Shared,
    lease_keeper::LeaseKeeper,
    run::{Ended, Ending, exit_text},
};

/// The lease is renewed meanwhile; when it is lost, so is the write.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes how the run ended, unless the build is not ours any more.
pub(crate) async fn finish(
    shared: &Shared,
    number: u16,
    record: &BuildRecord,
    started_at: Sequence,
    keeper: LeaseKeeper,
    ending: Ending,
    (outputs, log): (Vec<OutputFile>, LogSummary),
) {
    let next = match ending {
        Ending::NotOurs => {
            keeper.finish().await;
            // The dispatchers did not hear from us that the workspace is free.
            shared.slots.set_ending(number);
            shared.slots.announce.notify_one();
            return;
        }
        Ending::GiveBack(reason) => give_back(record, reason, shared),
        Ending::Exited(ended) => record.finished(with(of_exit(&ended), outputs, log), Millis::now()),
        Ending::TimedOut(ended) => {
            record.finished(with(of_timeout(record, ended.as_ref()), outputs, log), Millis::now())
        }
        Ending::Failed(reason, ended) => {
            record.finished(with(of_failure(reason, ended.as_ref()), outputs, log), Millis::now())
        }
    };
    let bus = &shared.context.bus;
    match bus.transition(&next, started_at, PATIENCE).await {
        Ok(Written::Won(_)) => tell(&next),
        Ok(Written::Lost(_)) => debug!(build = %record.build.id, "the run was ended by someone else"),
        // The lease runs out and the build is run again: better twice than never.
        Err(error) => {
            warn!(build = %record.build.id, error = telemetry::error_chain(&error), "the result was not written")
        }
    }
    crash_point(Step::FinishWritten);
    shared.slots.set_ending(number);
    if next.result().is_none() {
        shared.slots.announce.notify_one();
    }
    let lease = keeper.finish().await;
    if let Err(error) = bus.release_lease(&lease).await {
        debug!(build = %record.build.id, error = telemetry::error_chain(&error), "the lease is left to expire");
    }
    crash_point(Step::LeaseReleased);
}

fn give_back(record: &BuildRecord, reason: Reason, shared: &Shared) -> BuildRecord {
    let next = after_loss(record, shared.id.clone(), reason, Millis::now());
    match next {
        AfterLoss::Requeue(record) | AfterLoss::GiveUp(record) => *record,
    }
}

fn with(mut result: BuildResult, outputs: Vec<OutputFile>, log: LogSummary) -> BuildResult {
    result.outputs = outputs;
    result.log = log;
    result
}

fn of_exit(ended: &Ended) -> BuildResult {
    let succeeded = ended.exit.exit_code == Some(0);
    let reason = (!succeeded).then(|| Reason {
        code: ReasonCode::CommandFailed,
        message: format!("the command failed: {}", exit_text(&ended.exit)),
    });
    let outcome = if succeeded { Outcome::Succeeded } else { Outcome::Failed };
    BuildResult { outcome, reason, ..measured(Some(ended)) }
}

fn of_timeout(record: &BuildRecord, ended: Option<&Ended>) -> BuildResult {
    let message = format!("it ran longer than its timeout of {} s", record.build.timeout_seconds);
    let reason = Some(Reason { code: ReasonCode::RunningTooLong, message });
    BuildResult { outcome: Outcome::TimedOut, reason, ..measured(ended) }
}

fn of_failure(reason: Reason, ended: Option<&Ended>) -> BuildResult {
    BuildResult { outcome: Outcome::Failed, reason: Some(reason), ..measured(ended) }
}

fn measured(ended: Option<&Ended>) -> BuildResult {
    let mut result = BuildResult::without_run(Outcome::Failed, ReasonCode::CommandFailed, "");
    if let Some(Ended { exit, started_at_us }) = ended {
        result.exit_code = exit.exit_code;
        result.signal = exit.signal;
        result.command_started_at_us = *started_at_us;
        result.wall_seconds = exit.wall.as_secs_f64();
        result.cpu_seconds = exit.cpu.as_secs_f64();
        result.peak_memory_bytes = exit.peak_memory_bytes;
    }
    result
}

fn tell(record: &BuildRecord) {
    match record.result() {
        Some(result) => {
            count(Counter::BuildsFinished, &[(Label::Outcome, result.outcome.as_str())], 1);
            observe(Histogram::BuildRunSeconds, &[], Duration::from_secs_f64(result.wall_seconds.max(0.0)));
        }
        None => count(Counter::BuildsRequeued, &[(Label::Reason, "given_back")], 1),
    }
}
