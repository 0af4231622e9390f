//! How a run ended, and the outcome and reason that follow from it.

use std::path::PathBuf;

use jobs::{JobEnd, shortcoming};
use model::{BuildRecord, BuildResult, Outcome, Reason, ReasonCode, WorkerId};
use policy::may_be_prepared_elsewhere;
use sandbox::SandboxError;
use shim::{Exit, ShimError};

use crate::{limits, stop::Cause};

/// How a run, or one of its commands, ended.
pub(crate) enum Ending {
    /// The command exited without being stopped.
    Exited(Ended),
    /// All tasks of its job ended, or can never start.
    Tasks {
        /// Folder with the outputs that its globs match.
        outputs: PathBuf,
    },
    /// The build failed before its command ran, or its outputs could not be stored.
    Failed(Reason, Option<Ended>),
    /// The wanted context is unavailable; the workspace is unchanged.
    NoContent(Reason),
    /// The store did not answer when the context was fetched: the build is requeued. The workspace is unchanged.
    NotFetched(Reason),
    /// The build exceeded its timeout.
    TimedOut(Option<Ended>),
    /// The worker shuts down or has a fault: the build is requeued.
    GiveBack(Reason),
    /// The build belongs to another attempt: nothing is written.
    NotOurs,
}

/// Measurements of a command that ran.
#[derive(Clone)]
pub(crate) struct Ended {
    pub(crate) exit: Exit,
    pub(crate) started_at_us: Option<u64>,
    /// The limit of its workspace that the command exceeded.
    pub(crate) over: Option<Reason>,
    /// The last line that a program of the worker printed; empty for builds.
    pub(crate) said: String,
}

impl Ended {
    pub(crate) fn is_success(&self) -> bool {
        self.exit.exit_code == Some(0) && self.over.is_none()
    }

    /// How the command ended, as text for the user.
    pub(crate) fn text(&self) -> String {
        match (self.exit.exit_code, self.exit.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => "unknown exit status".to_owned(),
        }
    }
}

impl Ending {
    /// The command could not be started.
    pub(crate) fn not_started(message: String) -> Self {
        Self::Failed(Reason { code: ReasonCode::CommandNotStarted, message }, None)
    }

    /// The workspace could not be made or filled: the build is given back if this machine is the reason, or may be.
    pub(crate) fn of_workspace(reason: Reason, record: &BuildRecord) -> Self {
        let goes_elsewhere = reason.code == ReasonCode::WorkerFault
            || reason.code == ReasonCode::ContextUnavailable && may_be_prepared_elsewhere(record);
        if goes_elsewhere { Self::GiveBack(reason) } else { Self::Failed(reason, None) }
    }

    /// The limits of the workspace cannot be set.
    pub(crate) fn not_limited(error: &SandboxError) -> Self {
        let message = format!("the workspace cannot be limited: {}", telemetry::error_chain(error));
        Self::GiveBack(Reason { code: ReasonCode::WorkerFault, message })
    }

    /// The shim died, and the command with it.
    pub(crate) fn shim_gone(error: &ShimError) -> Self {
        let message = format!("the shim of the workspace died: {}", telemetry::error_chain(error));
        Self::GiveBack(Reason { code: ReasonCode::WorkerFault, message })
    }

    /// The run was stopped for `cause`; without one, its lease was not renewed in time. `ended` holds the
    /// measurements of its command.
    pub(crate) fn stopped(cause: Option<Cause>, worker: &WorkerId, ended: Option<Ended>) -> Self {
        match cause {
            Some(Cause::Drained) => {
                let message = format!("worker {worker} is draining");
                Self::GiveBack(Reason { code: ReasonCode::WorkerDrained, message })
            }
            Some(Cause::FilledDisk { resource, used, left, reserve }) => {
                let message = format!(
                    "the build filled the worker's disk and was stopped: its workspace used {used} {resource}, {left} \
                     {resource} were left, and {reserve} must stay free (disk_left_percent)"
                );
                Self::Failed(Reason { code: ReasonCode::DiskFull, message }, ended)
            }
            Some(Cause::OverDisk { used, allowed }) => {
                Self::Failed(limits::too_much_disk(used, allowed), ended)
            }
            Some(Cause::EndedElsewhere | Cause::LeaseLost) | None => Self::NotOurs,
        }
    }

    /// Attributes a failure to the full disk. The build is requeued, unless its own files are the reason.
    pub(crate) fn blame_disk(self, is_own_fault: bool) -> Self {
        let full = |reason: Reason| {
            if reason.code == ReasonCode::DiskFull { reason } else { disk_full(&reason.message) }
        };
        match self {
            Self::Exited(ended) if !ended.is_success() => {
                let reason = disk_full(&format!("the command failed: {}", ended.text()));
                if is_own_fault { Self::Failed(reason, Some(ended)) } else { Self::GiveBack(reason) }
            }
            Self::Failed(reason, Some(ended)) if is_own_fault => Self::Failed(full(reason), Some(ended)),
            Self::Failed(reason, _) | Self::NoContent(reason) => Self::GiveBack(full(reason)),
            Self::Exited(_)
            | Self::Tasks { .. }
            | Self::NotFetched(_)
            | Self::TimedOut(_)
            | Self::GiveBack(_)
            | Self::NotOurs => self,
        }
    }

    /// Whether the run failed because the disk was full, which may have room by now.
    pub(crate) fn lacked_room(&self) -> bool {
        match self {
            Self::Failed(reason, _) | Self::NoContent(reason) => reason.code == ReasonCode::DiskFull,
            Self::Exited(_)
            | Self::Tasks { .. }
            | Self::NotFetched(_)
            | Self::TimedOut(_)
            | Self::GiveBack(_)
            | Self::NotOurs => false,
        }
    }

    /// Whether the command or the job ran to its end.
    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Self::Exited(_) | Self::Tasks { .. } => true,
            Self::Failed(..)
            | Self::NoContent(_)
            | Self::NotFetched(_)
            | Self::TimedOut(_)
            | Self::GiveBack(_)
            | Self::NotOurs => false,
        }
    }

    /// Whether the run succeeded; for a build that is a job, `job` decides.
    pub(crate) fn is_success(&self, job: Option<&JobEnd>) -> bool {
        match self {
            Self::Exited(ended) => ended.is_success(),
            Self::Tasks { .. } => job.is_some_and(|job| shortcoming(&job.result).is_none()),
            Self::Failed(..)
            | Self::NoContent(_)
            | Self::NotFetched(_)
            | Self::TimedOut(_)
            | Self::GiveBack(_)
            | Self::NotOurs => false,
        }
    }

    /// The same with other messages.
    pub(crate) fn with_messages(self, change: impl Fn(String) -> String) -> Self {
        let of_reason = |Reason { code, message }| Reason { code, message: change(message) };
        let of_ended = |ended: Ended| Ended {
            over: ended.over.map(of_reason),
            said: change(ended.said),
            exit: ended.exit,
            started_at_us: ended.started_at_us,
        };
        match self {
            Self::Exited(ended) => Self::Exited(of_ended(ended)),
            Self::Failed(reason, ended) => Self::Failed(of_reason(reason), ended.map(of_ended)),
            Self::NoContent(reason) => Self::NoContent(of_reason(reason)),
            Self::NotFetched(reason) => Self::NotFetched(of_reason(reason)),
            Self::TimedOut(ended) => Self::TimedOut(ended.map(of_ended)),
            Self::GiveBack(reason) => Self::GiveBack(of_reason(reason)),
            Self::Tasks { .. } | Self::NotOurs => self,
        }
    }

    /// The measurements of the command, if it ran.
    pub(crate) fn ended(&self) -> Option<&Ended> {
        match self {
            Self::Exited(ended) => Some(ended),
            Self::Failed(_, ended) | Self::TimedOut(ended) => ended.as_ref(),
            Self::Tasks { .. }
            | Self::NoContent(_)
            | Self::NotFetched(_)
            | Self::GiveBack(_)
            | Self::NotOurs => None,
        }
    }

    /// The same, to be changed.
    pub(crate) fn ended_mut(&mut self) -> Option<&mut Ended> {
        match self {
            Self::Exited(ended) => Some(ended),
            Self::Failed(_, ended) | Self::TimedOut(ended) => ended.as_mut(),
            Self::Tasks { .. }
            | Self::NoContent(_)
            | Self::NotFetched(_)
            | Self::GiveBack(_)
            | Self::NotOurs => None,
        }
    }

    /// The result of the build, without what was kept of the run; `None` if this run gives it none.
    pub(crate) fn result(&self, timeout_seconds: u64, job: Option<&JobEnd>) -> Option<BuildResult> {
        let failed = |code, message| (Outcome::Failed, Some(Reason { code, message }));
        let (outcome, reason) = match self {
            Self::NotOurs | Self::GiveBack(_) | Self::NotFetched(_) => return None,
            Self::Exited(ended) if ended.is_success() => (Outcome::Succeeded, None),
            Self::Exited(Ended { over: Some(reason), .. })
            | Self::Failed(reason, _)
            | Self::NoContent(reason) => (Outcome::Failed, Some(reason.clone())),
            Self::Exited(ended) => {
                failed(ReasonCode::CommandFailed, format!("the command failed: {}", ended.text()))
            }
            Self::Tasks { .. } => match job.and_then(|job| shortcoming(&job.result)) {
                None => (Outcome::Succeeded, None),
                Some(message) => failed(ReasonCode::TasksFailed, message),
            },
            Self::TimedOut(_) => {
                let message = format!("the build exceeded its timeout of {timeout_seconds} s");
                (Outcome::TimedOut, Some(Reason { code: ReasonCode::RunningTooLong, message }))
            }
        };
        let unmeasured = BuildResult::without_run(outcome, ReasonCode::CommandFailed, "");
        let result = BuildResult { reason, ..unmeasured };
        Some(match self.ended() {
            None => result,
            Some(Ended { exit, started_at_us, .. }) => BuildResult {
                exit_code: exit.exit_code,
                signal: exit.signal,
                command_started_at_us: *started_at_us,
                wall_seconds: exit.wall.as_secs_f64(),
                cpu_seconds: exit.cpu.as_secs_f64(),
                peak_memory_bytes: exit.peak_memory_bytes,
                ..result
            },
        })
    }
}

fn disk_full(what: &str) -> Reason {
    Reason { code: ReasonCode::DiskFull, message: format!("the worker's disk is full; {what}") }
}
