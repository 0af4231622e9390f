//! Constructors of the API's errors.

use model::{ApiError, ErrorCode};

/// The error of a call that can never succeed.
pub(crate) fn invalid(why: String) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, why)
}

/// The error of a call that cannot be answered now.
pub(crate) fn unavailable<E: std::error::Error>(error: E) -> ApiError {
    ApiError::new(ErrorCode::Unavailable, telemetry::error_chain(&error))
}
