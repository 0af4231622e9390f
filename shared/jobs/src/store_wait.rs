//! Waits for a store that is full or does not answer.

use std::time::Duration;

use cas::CasError;
use model::{Reason, ReasonCode};
use tokio::time::Instant;

/// How long a run waits, from the first failure, before its build is requeued.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two attempts.
const RETRY: Duration = Duration::from_secs(1);

/// The code of a failure of the store that may pass; `None` if the error is about the content, or the trust zone of the build
/// has as much as it may have: another worker would fail too.
pub fn passing_code(error: &CasError) -> Option<ReasonCode> {
    if error.is_full() {
        Some(ReasonCode::DiskFull)
    } else if error.is_about_content() || error.is_zone_limit() {
        None
    } else {
        Some(ReasonCode::StoreUnreachable)
    }
}

/// The wait of one step of a run for the store.
#[derive(Debug, Default)]
pub struct StoreWait {
    until: Option<Instant>,
}

impl StoreWait {
    /// Begins to wait with the first failure; returns the line for the console then.
    pub fn begin(&mut self, reason: &Reason) -> Option<String> {
        if self.until.is_some() {
            return None;
        }
        self.until = Some(Instant::now() + PATIENCE);
        let what = if reason.code == ReasonCode::DiskFull { "space in the store" } else { "the store" };
        Some(format!("waiting for {what}: {}", reason.message))
    }

    /// What is left of the wait; `None` before its first failure.
    pub fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    pub fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Sleeps until the next attempt, the last of which is at the end of the wait.
    pub async fn pause(&self) {
        let next = Instant::now() + RETRY;
        tokio::time::sleep_until(self.until.map_or(next, |until| until.min(next))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_says_once_what_it_waits_for_and_ends() {
        let full = Reason { code: ReasonCode::DiskFull, message: "full".into() };
        let mut wait = StoreWait::default();
        tokio::time::sleep(2 * PATIENCE).await;
        assert!(!wait.is_over(), "it begins with the first failure");
        assert_eq!(wait.begin(&full).unwrap(), "waiting for space in the store: full");
        let mut pauses = 0;
        while !wait.is_over() {
            assert_eq!(wait.begin(&full), None);
            wait.pause().await;
            pauses += 1;
        }
        assert_eq!(pauses, 30);
        let away = Reason { code: ReasonCode::StoreUnreachable, message: "away".into() };
        assert_eq!(StoreWait::default().begin(&away).unwrap(), "waiting for the store: away");
    }
}
