//! Errors of the services behind the gateway as gRPC statuses.

use bus::BusError;
use reapi::status;
use telemetry::error_chain;
use tonic::{Code, Status};

use super::RETRY;

pub(crate) use cas_grpc::status_of as store;

/// The status of a failed bus call. Transient failures carry a retry delay.
#[expect(clippy::needless_pass_by_value, reason = "it is passed to map_err")]
pub(crate) fn bus(error: BusError) -> Status {
    let text = error_chain(&error);
    tracing::warn!(error = text, "bus call failed");
    match error {
        BusError::TooLarge { .. } => Status::invalid_argument(text),
        BusError::Corrupt { .. } | BusError::Unsealed { .. } => Status::internal(text),
        BusError::Url { .. }
        | BusError::Credentials(_)
        | BusError::Denied(_)
        | BusError::Refused { .. }
        | BusError::Unreachable { .. }
        | BusError::Timeout { .. }
        | BusError::Failed { .. } => status::retry(Code::Unavailable, text, RETRY),
    }
}
