//! How an execution ended, in the protocol's words.

use std::{error::Error, time::SystemTime};

use model::{BlobDigest, ExecutionOutcome, ExecutorId};
use reapi::protobuf::Timestamp;

/// Codes of `google.rpc.Code`.
pub(crate) mod code {
    pub(crate) const INVALID_ARGUMENT: i32 = 3;
    pub(crate) const DEADLINE_EXCEEDED: i32 = 4;
    pub(crate) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(crate) const FAILED_PRECONDITION: i32 = 9;
    pub(crate) const INTERNAL: i32 = 13;
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
    pub(crate) fn internal(error: &(dyn Error + 'static)) -> Self {
        Self::new(code::INTERNAL, telemetry::error_chain(error))
    }

    /// What is written for it, unless it was stopped.
    pub(crate) fn outcome(self, executor: &ExecutorId) -> Option<ExecutionOutcome> {
        match self {
            Self::Stopped => None,
            Self::Ends { code, message, missing } => Some(ExecutionOutcome {
                executor: Some(executor.clone()),
                code,
                message,
                missing,
                exit_code: None,
                result: None,
                server_logs: Vec::new(),
            }),
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
