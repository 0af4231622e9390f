//! Errors of calls, and the exit codes of a command line for them.

use bus::{AskError, BusError, DecodeError};
use model::{ApiError, ErrorCode};

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The service rejected the call.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The service is not connected to the bus.
    #[error("no {who} answers: check that one is running")]
    Unreachable { who: &'static str },
    /// No answer came; it is unknown whether the call took effect.
    #[error("no answer from the {who}")]
    Doubtful {
        who: &'static str,
        #[source]
        source: AskError,
    },
    /// The answer is not in the expected format.
    #[error("cannot read the answer of the {who}")]
    Answer {
        who: &'static str,
        #[source]
        source: DecodeError,
    },
    #[error(transparent)]
    Bus(#[from] BusError),
}

impl ClientError {
    /// Exit code of a command line: 2 for bad input, 4 if no service answers.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Api(error) => match error.error {
                ErrorCode::InvalidRequest
                | ErrorCode::Conflict
                | ErrorCode::NotFound
                | ErrorCode::Unauthenticated
                | ErrorCode::PermissionDenied => 2,
                ErrorCode::LimitReached | ErrorCode::Unavailable => 4,
            },
            Self::Bus(BusError::Url { .. } | BusError::Credentials(_) | BusError::Denied(_)) => 2,
            Self::Unreachable { .. } | Self::Doubtful { .. } | Self::Answer { .. } | Self::Bus(_) => 4,
        }
    }

    /// Whether the same call may succeed later, because no service could answer it now.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Doubtful { .. } => true,
            Self::Api(error) => {
                matches!(error.error, ErrorCode::LimitReached | ErrorCode::Unavailable)
            }
            Self::Bus(error) => {
                matches!(
                    error,
                    BusError::Unreachable { .. } | BusError::Timeout { .. } | BusError::Failed { .. }
                )
            }
            Self::Answer { .. } => false,
        }
    }

    pub(crate) fn api(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::Api(ApiError::new(code, message))
    }

    pub(crate) fn from_ask(error: AskError, who: &'static str) -> Self {
        match error {
            AskError::Refused(error) => Self::Api(error),
            AskError::NobodyListens { .. } => Self::Unreachable { who },
            AskError::Denied(denied) => Self::Bus(denied.into()),
            AskError::TooLarge { .. } => Self::api(ErrorCode::InvalidRequest, error.to_string()),
            AskError::Doubtful { .. } => Self::Doubtful { who, source: error },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ApiError, ClientError, ErrorCode};

    #[test]
    fn exit_codes() {
        for (code, wanted) in [
            (ErrorCode::InvalidRequest, 2),
            (ErrorCode::Conflict, 2),
            (ErrorCode::NotFound, 2),
            (ErrorCode::Unavailable, 4),
        ] {
            assert_eq!(ClientError::Api(ApiError::new(code, "")).exit_code(), wanted);
        }
        assert_eq!(ClientError::Unreachable { who: "enqueuer" }.exit_code(), 4);
        assert_eq!(
            ClientError::Unreachable { who: "enqueuer" }.to_string(),
            "no enqueuer answers: check that one is running"
        );
    }
}
