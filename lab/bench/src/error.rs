//! Why a benchmark failed.

use std::error::Error;

use bus::BusError;
use client::ClientError;
use command_line::failure::{FAILED, Failure};
use remote::RemoteError;
use transfer::TransferError;

/// A benchmark without a result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An option is invalid, or names a folder that cannot be used.
    #[error("{0}")]
    Usage(String),
    /// A measurement failed, or its result exceeds a limit.
    #[error("{0}")]
    Failed(String),
    #[error(transparent)]
    Client(Box<ClientError>),
    #[error(transparent)]
    Remote(Box<RemoteError>),
    #[error(transparent)]
    Transfer(Box<TransferError>),
}

impl BenchError {
    /// A failure of `what` with its cause.
    pub(crate) fn new(what: impl Into<String>, cause: &dyn Error) -> Self {
        Self::Failed(format!("{}: {}", what.into(), telemetry::error_chain(cause)))
    }

    /// A failure that `line` describes completely.
    pub(crate) fn plain(line: impl Into<String>) -> Self {
        Self::Failed(line.into())
    }

    /// An invalid option, with the reason.
    pub(crate) fn usage(option: impl Into<String>, cause: &dyn Error) -> Self {
        Self::Usage(format!("{}: {}", option.into(), telemetry::error_chain(cause)))
    }
}

impl From<ClientError> for BenchError {
    fn from(error: ClientError) -> Self {
        Self::Client(Box::new(error))
    }
}

impl From<BusError> for BenchError {
    fn from(error: BusError) -> Self {
        ClientError::from(error).into()
    }
}

impl From<RemoteError> for BenchError {
    fn from(error: RemoteError) -> Self {
        Self::Remote(Box::new(error))
    }
}

impl From<TransferError> for BenchError {
    fn from(error: TransferError) -> Self {
        Self::Transfer(Box::new(error))
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Usage(line) => Self::usage(line),
            BenchError::Failed(line) => Self::plain(FAILED, line),
            BenchError::Client(error) => (*error).into(),
            BenchError::Remote(error) => (*error).into(),
            BenchError::Transfer(error) => (*error).into(),
        }
    }
}
