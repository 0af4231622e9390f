//! What goes wrong behind the gateway, as clients are told it.

use bus::BusError;
use reapi::status;
use telemetry::error_chain;
use tonic::{Code, Status};

use super::RETRY;

pub(crate) use cas_service::status_of as store;

/// A call of the bus that failed: whoever asks again soon may be lucky.
#[expect(clippy::needless_pass_by_value, reason = "it is given to map_err")]
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
