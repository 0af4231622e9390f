//! What goes wrong behind the gateway, as clients are told it.

use bus::BusError;
use cas::CasError;
use reapi::status;
use telemetry::error_chain;
use tonic::{Code, Status};

use super::RETRY;

/// A call of the bus that failed: whoever asks again soon may be lucky.
pub(crate) fn bus(error: BusError) -> Status {
    let text = error_chain(&error);
    tracing::warn!(error = text, "a call failed at the bus");
    match error {
        BusError::TooLarge { .. } => Status::invalid_argument(text),
        BusError::Corrupt { .. } => Status::internal(text),
        BusError::Url { .. }
        | BusError::Unreachable { .. }
        | BusError::Timeout { .. }
        | BusError::Failed { .. } => status::retry(Code::Unavailable, text, RETRY),
    }
}

/// A call of the store that failed.
pub(crate) fn store(error: &CasError) -> Status {
    let text = error_chain(error);
    if matches!(
        error,
        CasError::TooLargeAtOnce { .. } | CasError::TooLarge { .. } | CasError::Malformed { .. }
    ) {
        return Status::invalid_argument(text);
    }
    if matches!(error, CasError::Full) {
        return status::retry(Code::ResourceExhausted, text, RETRY);
    }
    tracing::warn!(error = text, "a call failed at the store");
    if matches!(error, CasError::Backing { .. } | CasError::Stopping) {
        return status::retry(Code::Unavailable, text, RETRY);
    }
    Status::internal(text)
}
