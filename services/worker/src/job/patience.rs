//! Waiting while the farm is away or full: that is no failure of a task.

use std::{borrow::Borrow, time::Duration};

use remote::RemoteError;
use tokio::time::Instant;
use tonic::Code;

/// How long the farm may be away.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first wait; each further one is twice as long, up to the longest.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// Repeats a call while the farm is away or full, up to a minute.
pub(crate) async fn patiently<T, E, F>(mut call: impl FnMut() -> F) -> Result<T, E>
where
    E: Borrow<RemoteError>,
    F: Future<Output = Result<T, E>>,
{
    let until = Instant::now() + PATIENCE;
    let mut wait = FIRST;
    loop {
        match call().await {
            Err(error) if may_pass(error.borrow()) && Instant::now() + wait < until => {
                tokio::time::sleep(wait).await;
                wait = (2 * wait).min(LONGEST);
            }
            ended => return ended,
        }
    }
}

fn may_pass(error: &RemoteError) -> bool {
    let is_full = match error {
        RemoteError::Refused { status, .. } => status.code() == Code::ResourceExhausted,
        RemoteError::Unreachable { .. }
        | RemoteError::Missing { .. }
        | RemoteError::File { .. }
        | RemoteError::Answer { .. } => false,
    };
    is_full || error.is_unreachable()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn refused(code: Code) -> RemoteError {
        RemoteError::Refused { what: "x".into(), status: Box::new(tonic::Status::new(code, "no")) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_farm_that_is_away_is_waited_for() {
        let calls = Cell::new(0);
        let answer = patiently(|| {
            calls.set(calls.get() + 1);
            let answer = if calls.get() < 4 { Err(refused(Code::Unavailable)) } else { Ok(7) };
            std::future::ready(answer)
        });
        assert_eq!(answer.await.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn but_not_for_ever_and_not_when_it_says_no() {
        let began = Instant::now();
        let answer: Result<(), RemoteError> =
            patiently(|| std::future::ready(Err(refused(Code::ResourceExhausted)))).await;
        assert!(answer.is_err());
        assert!(began.elapsed() > PATIENCE / 2 && began.elapsed() <= PATIENCE, "{:?}", began.elapsed());
        let began = Instant::now();
        let answer: Result<(), RemoteError> =
            patiently(|| std::future::ready(Err(refused(Code::InvalidArgument)))).await;
        assert!(answer.is_err() && began.elapsed().is_zero());
    }
}
