//! What can go wrong with a call, and what a command line exits with then.

use bus::{AskError, BusError, DecodeError};
use model::{ApiError, ErrorCode};

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The service refused it.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// No such service is connected to the bus.
    #[error("no {who} answers: is one running?")]
    Unreachable {
        /// Which service.
        who: &'static str,
    },
    /// No answer came; whether the call took effect is not known.
    #[error("no answer from the {who}")]
    Doubtful {
        /// Which service.
        who: &'static str,
        /// Why.
        #[source]
        source: AskError,
    },
    /// The answer is not what it should be.
    #[error("the answer of the {who} cannot be read")]
    Answer {
        /// Which service.
        who: &'static str,
        /// Why.
        #[source]
        source: DecodeError,
    },
    /// The bus failed.
    #[error(transparent)]
    Bus(#[from] BusError),
}

impl ClientError {
    /// What a command line exits with (DESIGN §7): 2 for bad input, 4 where nobody answers.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Api(error) => match error.error {
                ErrorCode::InvalidRequest | ErrorCode::Conflict | ErrorCode::NotFound => 2,
                ErrorCode::Unavailable => 4,
            },
            Self::Bus(BusError::Url { .. }) => 2,
            Self::Unreachable { .. } | Self::Doubtful { .. } | Self::Answer { .. } | Self::Bus(_) => 4,
        }
    }

    /// Whether the same call may succeed later, because nobody could answer it now.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Doubtful { .. } => true,
            Self::Api(error) => error.error == ErrorCode::Unavailable,
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
            "no enqueuer answers: is one running?"
        );
    }
}
