//! Why a task has no result of its command.

use model::BlobDigest;
use remote::RemoteError;

use crate::{answer, job_files::ViewError, tree::TreeError};

/// Why a task has no result of its command.
pub(crate) enum TaskError {
    /// The task is at fault: another try would fail too.
    Own(String),
    /// The farm is at fault: another try may succeed.
    Farm(String),
    /// The farm's store lost these inputs, which earlier tasks made.
    Lost(Vec<BlobDigest>),
}

impl TaskError {
    /// The reason as text for the user.
    pub(crate) fn into_reason(self) -> String {
        match self {
            Self::Own(reason) | Self::Farm(reason) => reason,
            Self::Lost(lost) => {
                format!("the farm's store lost {} files of earlier tasks repeatedly", lost.len())
            }
        }
    }
}

impl From<ViewError> for TaskError {
    fn from(error: ViewError) -> Self {
        Self::Own(telemetry::error_chain(&error))
    }
}

impl From<TreeError> for TaskError {
    fn from(error: TreeError) -> Self {
        Self::Own(telemetry::error_chain(&error))
    }
}

impl From<&RemoteError> for TaskError {
    fn from(error: &RemoteError) -> Self {
        let text = telemetry::error_chain(error);
        match error {
            RemoteError::Refused { status, .. } if answer::is_own(status.code()) => Self::Own(text),
            RemoteError::File { .. } => Self::Own(text),
            RemoteError::Missing { digest } => Self::Lost(vec![*digest]),
            RemoteError::Refused { .. }
            | RemoteError::Unreachable { .. }
            | RemoteError::Lost { .. }
            | RemoteError::Answer { .. } => Self::Farm(text),
        }
    }
}

impl From<RemoteError> for TaskError {
    fn from(error: RemoteError) -> Self {
        Self::from(&error)
    }
}
