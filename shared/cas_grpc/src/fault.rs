//! Converts errors of the store to gRPC statuses.

use std::time::Duration;

use cas::CasError;
use reapi::status;
use tonic::{Code, Status};

/// Maximum time of one call to the store.
const PATIENCE: Duration = Duration::from_secs(60);

/// Default delay before a client should try again.
pub(crate) const RETRY_SOON: Duration = Duration::from_secs(1);

/// Delay before a client should try again while the store is full.
const RETRY_FULL: Duration = Duration::from_secs(30);

/// Converts an error of the store to a status.
pub fn status_of(error: &CasError) -> Status {
    let message = error.to_string();
    match error {
        CasError::Mismatch { .. }
        | CasError::TooLong { .. }
        | CasError::TooLarge { .. }
        | CasError::MixedFunctions { .. }
        | CasError::Malformed { .. } => Status::invalid_argument(message),
        CasError::TooLargeAtOnce { .. } => Status::out_of_range(message),
        CasError::Missing { .. } | CasError::NotFound { .. } => Status::not_found(message),
        CasError::AboveZoneLimit { .. } => status::zone_limit(message, None),
        CasError::ZoneFull { .. } | CasError::RefusedForZone { .. } => {
            status::zone_limit(message, Some(RETRY_FULL))
        }
        CasError::Full => status::retry(Code::ResourceExhausted, message, RETRY_FULL),
        CasError::Backing { .. } => {
            tracing::warn!(error = telemetry::error_chain(error), "the object store failed");
            status::retry(Code::Unavailable, message, RETRY_SOON)
        }
        CasError::Unreachable { .. } | CasError::Remote { .. } => {
            tracing::warn!(error = telemetry::error_chain(error), "the farm behind the store failed");
            status::retry(Code::Unavailable, message, RETRY_SOON)
        }
        CasError::Stopping => status::retry(Code::Unavailable, message, RETRY_SOON),
        CasError::NotAFile { .. }
        | CasError::Source { .. }
        | CasError::Disk { .. }
        | CasError::Unsupported { .. }
        | CasError::EvictorRuns { .. } => {
            tracing::error!(error = telemetry::error_chain(error), "the store failed");
            Status::internal(message)
        }
    }
}

/// Waits for a call to the store, for at most a minute.
pub async fn bounded<T>(asked: impl Future<Output = Result<T, CasError>>) -> Result<T, Status> {
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(|error| status_of(&error)),
        Err(_) => Err(busy("the store did not answer within 60 s; try again")),
    }
}

/// The status for a wait that took too long.
pub(crate) fn busy(message: &str) -> Status {
    status::retry(Code::Unavailable, message, RETRY_SOON)
}
