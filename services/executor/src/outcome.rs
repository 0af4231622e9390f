//! How a copy of an execution ended without a result of its command.

use std::{error::Error, time::SystemTime};

use model::{BlobDigest, ExecutionOutcome, ExecutorId};
use policy::actions::CopyEnd;
use reapi::protobuf::Timestamp;

/// Codes of `google.rpc.Code`.
pub(crate) mod code {
    pub(crate) const INVALID_ARGUMENT: i32 = 3;
    pub(crate) const DEADLINE_EXCEEDED: i32 = 4;
    pub(crate) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(crate) const FAILED_PRECONDITION: i32 = 9;
}

/// Why an action has no result of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It ends with this status.
    Ends {
        /// `google.rpc.Code`.
        code: i32,
        /// What happened.
        message: String,
        /// Inputs that are not there.
        missing: Vec<BlobDigest>,
    },
    /// Our own fault, or the machine's: it may succeed elsewhere.
    Machine {
        /// What happened.
        reason: String,
    },
    /// Nobody wants its result any more: nothing is written.
    Stopped,
}

impl Fault {
    pub(crate) fn new(code: i32, message: String) -> Self {
        Self::Ends { code, message, missing: Vec::new() }
    }

    pub(crate) fn invalid(message: String) -> Self {
        Self::new(code::INVALID_ARGUMENT, message)
    }

    pub(crate) fn precondition(message: String) -> Self {
        Self::new(code::FAILED_PRECONDITION, message)
    }

    pub(crate) fn missing(missing: Vec<BlobDigest>) -> Self {
        let message = format!("{} blobs of the action are not in the store", missing.len());
        Self::Ends { code: code::FAILED_PRECONDITION, message, missing }
    }

    /// Our own fault, or the machine's.
    pub(crate) fn machine(error: &(dyn Error + 'static)) -> Self {
        Self::Machine { reason: telemetry::error_chain(error) }
    }

    /// How the copy ended by it, unless it was stopped.
    pub(crate) fn end(self, executor: &ExecutorId) -> Option<CopyEnd> {
        match self {
            Self::Stopped => None,
            Self::Machine { reason } => Some(CopyEnd::Infrastructure { reason }),
            Self::Ends { code, message, missing } => Some(CopyEnd::Outcome(ExecutionOutcome {
                executor: Some(executor.clone()),
                missing,
                ..ExecutionOutcome::without_run(code, message)
            })),
        }
    }
}

/// A moment as the protocol writes it.
pub(crate) fn timestamp(at: SystemTime) -> Timestamp {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or(0),
    }
}
