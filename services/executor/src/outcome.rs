//! The status of an execution by how its command ended, and ends of a copy without a result of its command.

use std::{error::Error, time::SystemTime};

use cas::CasError;
use input_root::{CollectError, InputError};
use invariant::Present as _;
use model::{BlobDigest, ExecutionOutcome, ExecutorId, Interference};
use policy::actions::CopyEnd;
use reapi::protobuf::Timestamp;
use sandbox::{Cause, Ended, NotStarted};

use crate::{devices::Unassigned, limits::ExceededLimit};

/// Status codes of `google.rpc.Code`.
pub(crate) mod code {
    pub(crate) const INVALID_ARGUMENT: i32 = 3;
    pub(crate) const DEADLINE_EXCEEDED: i32 = 4;
    pub(crate) const PERMISSION_DENIED: i32 = 7;
    pub(crate) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(crate) const FAILED_PRECONDITION: i32 = 9;
}

/// How a command ended, and what else happened on its processors, if that was measured.
pub(crate) struct Ran {
    pub(crate) ended: Ended,
    pub(crate) interference: Option<Interference>,
}

/// The reason why an action has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The execution ends with this status.
    Ends {
        /// A value of `google.rpc.Code`.
        code: i32,
        message: String,
        /// Digests of the missing inputs.
        missing: Vec<BlobDigest>,
        /// What its services wrote, by name.
        logs: Vec<(String, BlobDigest)>,
    },
    /// The executor or the machine failed: the action may succeed elsewhere.
    Machine { reason: String },
    /// The result is not wanted any more: nothing is written.
    Stopped,
}

impl Fault {
    pub(crate) fn new(code: i32, message: String) -> Self {
        Self::Ends { code, message, missing: Vec::new(), logs: Vec::new() }
    }

    /// The same with these logs.
    pub(crate) fn with_logs(mut self, of_services: Vec<(String, BlobDigest)>) -> Self {
        if let Self::Ends { logs, .. } = &mut self {
            *logs = of_services;
        }
        self
    }

    pub(crate) fn invalid(message: String) -> Self {
        Self::new(code::INVALID_ARGUMENT, message)
    }

    pub(crate) fn precondition(message: String) -> Self {
        Self::new(code::FAILED_PRECONDITION, message)
    }

    pub(crate) fn denied(message: String) -> Self {
        Self::new(code::PERMISSION_DENIED, message)
    }

    pub(crate) fn missing(missing: Vec<BlobDigest>) -> Self {
        let message = format!("{} blobs of the action are missing from the CAS", missing.len());
        Self::Ends { code: code::FAILED_PRECONDITION, message, missing, logs: Vec::new() }
    }

    /// A failure of the executor or the machine, unless the trust zone of the action has as much in the store as it may have.
    pub(crate) fn machine(error: &(dyn Error + 'static)) -> Self {
        if is_zone_limit(error) {
            // Other executors, and executions of other zones, are not affected.
            return Self::new(code::RESOURCE_EXHAUSTED, telemetry::error_chain(error));
        }
        Self::Machine { reason: telemetry::error_chain(error) }
    }

    /// The command could not be started.
    pub(crate) fn not_started(why: NotStarted, message: String) -> Self {
        match why {
            NotStarted::NotFound | NotStarted::NotExecutable | NotStarted::WorkingDirectory => {
                Self::precondition(message)
            }
            NotStarted::TooLarge | NotStarted::Invalid => Self::invalid(message),
        }
    }

    /// The action gets no devices.
    pub(crate) fn unassigned(why: &Unassigned) -> Self {
        match why {
            Unassigned::Part { .. } => Self::precondition(why.to_string()),
            Unassigned::Busy { .. } => Self::machine(why),
        }
    }

    /// The input root could not be prepared.
    pub(crate) fn unprepared(error: &InputError) -> Self {
        match error {
            InputError::Missing(missing) => Self::missing(missing.clone()),
            InputError::Invalid(why) => Self::invalid(why.clone()),
            InputError::Stopping => Self::Stopped,
            InputError::Cas(error) => Self::machine(error),
            InputError::Io { .. } => Self::machine(error),
        }
    }

    /// The outputs could not be collected.
    pub(crate) fn uncollected(error: &CollectError) -> Self {
        match error {
            CollectError::Stopping => Self::Stopped,
            CollectError::Cas(error) => Self::machine(error),
            CollectError::WrongKind { .. }
            | CollectError::AbsoluteTarget { .. }
            | CollectError::Special { .. }
            | CollectError::Outside { .. }
            | CollectError::NotText { .. }
            | CollectError::TooMany { .. }
            | CollectError::TooDeep { .. }
            | CollectError::Io { .. } => Self::machine(error),
        }
    }

    /// The end of the copy, unless it was stopped.
    pub(crate) fn end(self, executor: &ExecutorId) -> Option<CopyEnd> {
        match self {
            Self::Stopped => None,
            Self::Machine { reason } => Some(CopyEnd::Infrastructure { reason }),
            Self::Ends { code, message, missing, logs } => Some(CopyEnd::Outcome(ExecutionOutcome {
                executor: Some(executor.clone()),
                missing,
                server_logs: logs,
                ..ExecutionOutcome::without_run(code, message)
            })),
        }
    }
}

fn is_zone_limit(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<CasError>().is_some_and(CasError::is_zone_limit) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The status code and message if the command was killed; `None` if it ended on its own.
pub(crate) fn verdict(ended: &Ended, broken: Option<&ExceededLimit>) -> Result<Option<(i32, String)>, Fault> {
    Ok(match (ended.cause, broken) {
        (Cause::Killed, _) => return Err(Fault::Machine { reason: "the command was killed".to_owned() }),
        (Cause::Deadline, Some(broken)) => Some((code::DEADLINE_EXCEEDED, broken.to_string())),
        (_, Some(broken)) => Some((code::RESOURCE_EXHAUSTED, broken.to_string())),
        (Cause::OutOfMemory, None) => Some((
            code::RESOURCE_EXHAUSTED,
            format!("out of memory: the command was killed after using {} bytes", ended.peak_memory_bytes),
        )),
        (Cause::Ended | Cause::Deadline | Cause::OutputTooLarge(..) | Cause::OverLimit(_), None) => None,
    })
}

/// The status of an action whose command failed after one of its services had ended, as `message` says.
pub(crate) fn blamed_service(message: &str, exit_code: i32) -> (i32, String) {
    (code::FAILED_PRECONDITION, format!("{message}; then the command ended with exit code {exit_code}"))
}

/// Converts to the timestamp type of the protocol.
pub(crate) fn timestamp(at: SystemTime) -> Timestamp {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).present("nanoseconds are more than a second"),
    }
}
