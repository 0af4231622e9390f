//! Answers that a page can do without.

use std::time::Duration;

use client::ClientError;
use tokio::time::timeout;

/// Time limit of the archive for a part of a page.
const PATIENCE: Duration = Duration::from_millis(1500);

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
