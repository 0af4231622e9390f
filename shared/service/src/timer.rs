//! Timers that may be unset.

use tokio::time::Instant;

/// Sleeps until `at`; never returns without a time.
pub async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
