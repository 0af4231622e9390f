//! Answers that a page can do without.

use std::time::Duration;

use client::ClientError;
use http_api::Failure;
use model::ErrorCode;
use tokio::time::timeout;

/// Time limit of the archive for a part of a page.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Time limit of the archive for a page that is about nothing else.
const PATIENCE_OF_PAGE: Duration = Duration::from_secs(5);

/// The answer that a page needs.
///
/// # Errors
///
/// Fails if it is an error, or does not come in time.
pub(crate) async fn needed<T>(asked: impl Future<Output = Result<T, ClientError>>) -> Result<T, Failure> {
    let late = |_| Failure::new(ErrorCode::Unavailable, "the archive does not answer: try again in a moment");
    Ok(timeout(PATIENCE_OF_PAGE, asked).await.map_err(late)??)
}

/// The answer, if it comes in time.
pub(crate) async fn answer<T>(asked: impl Future<Output = Result<T, ClientError>>) -> Option<T> {
    match timeout(PATIENCE, asked).await {
        Ok(Ok(answer)) => Some(answer),
        Ok(Err(error)) => {
            tracing::debug!(error = telemetry::error_chain(&error), "a part of a page is left out");
            None
        }
        Err(_) => {
            tracing::debug!("a part of a page is left out: no answer in time");
            None
        }
    }
}
