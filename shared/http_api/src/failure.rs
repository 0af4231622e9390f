//! Failures as HTTP responses: a status code and an [`ApiError`] as JSON.

use axum::{
    Json,
    extract::rejection::{PathRejection, QueryRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bus::BusError;
use cas::CasError;
use client::ClientError;
use invariant::Present as _;
use model::{ApiError, ErrorCode, ParseDigestError, ParseIdError};
use telemetry::error_chain;

/// The response to a failed request.
#[derive(Debug)]
pub struct Failure {
    status: StatusCode,
    body: ApiError,
}

impl Failure {
    /// A failure with the HTTP status that corresponds to `code`.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(code.http_status())
            .present_or(StatusCode::INTERNAL_SERVER_ERROR, "an error code has an invalid HTTP status");
        Self { status, body: ApiError::new(code, message) }
    }

    /// The failure of a call of a service.
    fn of(error: ApiError) -> Self {
        let status = Self::new(error.error, "").status;
        Self { status, body: error }
    }

    /// A limit is reached; the same request may succeed after this time.
    pub fn limit_reached(message: impl Into<String>, retry_after_seconds: u64) -> Self {
        Self::of(ApiError::limit_reached(message, retry_after_seconds))
    }

    /// The request is invalid: repeating it cannot succeed.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    /// The requested resource does not exist.
    pub fn missing(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::NotFound, message)
    }

    /// The status, and what is wrong.
    pub fn parts(self) -> (StatusCode, String) {
        (self.status, self.body.message)
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// What is wrong, for people.
    pub(crate) fn message(&self) -> &str {
        &self.body.message
    }

    /// The same failure with another status.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(status = self.status.as_u16(), error = self.body.message, "request failed");
        }
        let after = self.body.retry_after_seconds.map(|seconds| [(header::RETRY_AFTER, seconds.to_string())]);
        (self.status, after, Json(self.body)).into_response()
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Api(error) => Self::of(error),
            ClientError::Unreachable { .. }
            | ClientError::Doubtful { .. }
            | ClientError::Answer { .. }
            | ClientError::Bus(_) => Self::new(ErrorCode::Unavailable, error_chain(&error)),
        }
    }
}

impl From<BusError> for Failure {
    fn from(error: BusError) -> Self {
        ClientError::from(error).into()
    }
}

impl From<CasError> for Failure {
    fn from(error: CasError) -> Self {
        let code = if matches!(error, CasError::Missing { .. } | CasError::NotFound { .. }) {
            ErrorCode::NotFound
        } else if error.is_about_content() {
            ErrorCode::InvalidRequest
        } else {
            ErrorCode::Unavailable
        };
        Self::new(code, error_chain(&error))
    }
}

impl From<ParseIdError> for Failure {
    fn from(error: ParseIdError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<ParseDigestError> for Failure {
    fn from(error: ParseDigestError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<PathRejection> for Failure {
    fn from(rejection: PathRejection) -> Self {
        Self::invalid(rejection.body_text()).with_status(rejection.status())
    }
}

impl From<QueryRejection> for Failure {
    fn from(rejection: QueryRejection) -> Self {
        Self::invalid(rejection.body_text()).with_status(rejection.status())
    }
}
