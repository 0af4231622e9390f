//! Gives up work on a store that makes no progress.

use std::time::Duration;

use cas::PutProgress;
use model::{Reason, ReasonCode};
use tokio::time::Instant;

/// Time between two looks at the progress.
const TICK: Duration = Duration::from_secs(1);

/// Waits for `work` on the store, unless it makes no progress for `limit`.
pub(crate) async fn unless_stalled<T>(
    work: impl Future<Output = T>,
    progress: &PutProgress,
    limit: Duration,
) -> Result<T, Reason> {
    tokio::pin!(work);
    let (mut seen, mut since) = (progress.activity(), Instant::now());
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            () = tokio::time::sleep(TICK) => {}
        }
        let now = progress.activity();
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() >= limit {
            let message = format!("the store does not answer: no progress for {} s", limit.as_secs());
            return Err(Reason { code: ReasonCode::StoreUnreachable, message });
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::store_stall_limit;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_store_that_makes_no_progress_is_given_up_in_time() {
        let (progress, began) = (PutProgress::default(), Instant::now());
        let limit = store_stall_limit(0, None);
        let reason = unless_stalled(std::future::pending::<()>(), &progress, limit).await.unwrap_err();
        assert_eq!(reason.code, ReasonCode::StoreUnreachable);
        assert!(
            began.elapsed() >= limit && began.elapsed() < Duration::from_secs(25),
            "{:?}",
            began.elapsed()
        );
    }
}
