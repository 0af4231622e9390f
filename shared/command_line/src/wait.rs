//! How long a command waits for unavailable servers and services.

use std::{str::FromStr, time::Duration};

use bus::Patience;
use tokio::time::Instant;

use crate::failure::{Failure, UNREACHABLE, say};

/// Default limit: enough for a farm to start or a server to restart; after that the address is probably wrong.
const USUAL: Duration = Duration::from_secs(30);
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// Minimum time for one attempt.
const ATTEMPT_MIN: Duration = Duration::from_secs(1);
/// Time limit of the only attempt to connect of a command that does not wait.
const ONE_ATTEMPT: Duration = Duration::from_secs(6);

/// How long to wait for a server or service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitLimit {
    /// At most this time; zero means not to wait.
    AtMost(Duration),
    /// Wait without a limit.
    Forever,
}

impl Default for WaitLimit {
    fn default() -> Self {
        Self::AtMost(USUAL)
    }
}

impl WaitLimit {
    /// Do not wait at all.
    pub const NONE: Self = Self::AtMost(Duration::ZERO);

    /// The same for services and `up`, which either do not wait or wait without a limit.
    pub fn patience(self) -> Patience {
        if self == Self::NONE { Patience::None } else { Patience::Wait }
    }
}

impl FromStr for WaitLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "forever" => Ok(Self::Forever),
            "0" => Ok(Self::NONE),
            _ => humantime::parse_duration(text)
                .map(Self::AtMost)
                .map_err(|_| "expected a time such as 30s or 5m, 0, or forever".to_owned()),
        }
    }
}

/// The wait of one call or one connection attempt.
#[derive(Debug)]
pub struct Wait {
    limit: WaitLimit,
    /// Start of the first call or attempt.
    started: Instant,
    /// Whether the user was informed of the wait.
    said: bool,
}

impl Wait {
    /// A wait that begins now.
    pub fn new(limit: WaitLimit) -> Self {
        Self { limit, started: Instant::now(), said: false }
    }

    /// The rest of a wait for `limit`, at least the time for one attempt.
    fn left(&self, limit: Duration) -> Duration {
        limit.saturating_sub(self.started.elapsed()).max(ATTEMPT_MIN)
    }

    /// Runs one attempt to connect. Fails with the time limit if the wait ends before the attempt does.
    pub async fn attempt<T>(&self, attempt: impl Future<Output = T>) -> Result<T, Duration> {
        let (limit, left) = match self.limit {
            WaitLimit::Forever => return Ok(attempt.await),
            WaitLimit::NONE => (ONE_ATTEMPT, ONE_ATTEMPT),
            WaitLimit::AtMost(limit) => (limit.max(ATTEMPT_MIN), self.left(limit)),
        };
        tokio::time::timeout(left, attempt).await.map_err(|_| limit)
    }

    /// Runs one call until it has an answer, or until the limit, if the command waits at all.
    pub async fn answer<T>(&self, call: impl Future<Output = T>) -> Result<T, Failure> {
        let limit = match self.limit {
            WaitLimit::Forever | WaitLimit::NONE => return Ok(call.await),
            WaitLimit::AtMost(limit) => limit,
        };
        tokio::time::timeout(self.left(limit), call).await.map_err(|_| {
            let limit = humantime::format_duration(limit);
            let line = format!("the farm did not answer within {limit} (use --wait TIME to wait longer)");
            Failure::plain(UNREACHABLE, line)
        })
    }

    /// Waits a moment if waiting may help and the limit is not reached; the first call prints the reason.
    /// Returns the failure otherwise.
    pub async fn more(&mut self, failure: Failure) -> Result<(), Failure> {
        if self.limit == WaitLimit::NONE || !failure.is_unreachable() {
            return Err(failure);
        }
        let begins = !std::mem::replace(&mut self.said, true);
        match self.limit {
            WaitLimit::AtMost(limit) if self.started.elapsed() >= limit => {
                let limit = humantime::format_duration(limit);
                return Err(failure.with(&format!("waited {limit} (use --wait TIME to wait longer)")));
            }
            WaitLimit::AtMost(limit) if begins => {
                let limit = humantime::format_duration(limit);
                say(&format!("{}; waiting up to {limit} (--wait TIME, --no-wait)", failure.line()));
            }
            WaitLimit::Forever if begins => {
                say(&format!("{}; waiting (--wait TIME sets a limit)", failure.line()));
            }
            WaitLimit::AtMost(_) | WaitLimit::Forever => {}
        }
        tokio::time::sleep(RETRY_DELAY).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Failure, Patience, UNREACHABLE, Wait, WaitLimit};
    use crate::failure::USAGE;

    fn gone() -> Failure {
        Failure::plain(UNREACHABLE, "no enqueuer answers")
    }

    #[test]
    fn limits_are_read_as_people_write_them() {
        assert_eq!("0".parse(), Ok(WaitLimit::NONE));
        assert_eq!("0s".parse(), Ok(WaitLimit::NONE));
        assert_eq!("forever".parse(), Ok(WaitLimit::Forever));
        assert_eq!("90s".parse(), Ok(WaitLimit::AtMost(Duration::from_secs(90))));
        assert!("never".parse::<WaitLimit>().is_err() && "30".parse::<WaitLimit>().is_err());
        assert_eq!(
            (WaitLimit::NONE.patience(), WaitLimit::default().patience()),
            (Patience::None, Patience::Wait)
        );
    }

    #[tokio::test]
    async fn a_call_without_an_answer_ends_with_the_wait() {
        let wait = Wait::new(WaitLimit::AtMost(Duration::from_millis(10)));
        assert_eq!(wait.answer(async { 7 }).await.unwrap(), 7);
        let ended = wait.answer(std::future::pending::<()>()).await.unwrap_err();
        assert!(ended.is_unreachable() && ended.line().contains("within 10ms"), "{}", ended.line());
        assert_eq!(Wait::new(WaitLimit::NONE).answer(async { 7 }).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn the_time_of_an_attempt_is_part_of_the_wait() {
        let limit = Duration::from_millis(1100);
        let mut wait = Wait::new(WaitLimit::AtMost(limit));
        assert_eq!(wait.attempt(async { 7 }).await, Ok(7));
        assert_eq!(wait.attempt(std::future::pending::<()>()).await, Err(limit));
        assert!(wait.more(gone()).await.unwrap_err().line().contains("waited 1s 100ms"));
    }

    #[tokio::test]
    async fn a_wait_ends() {
        assert!(Wait::new(WaitLimit::NONE).more(gone()).await.is_err());
        assert!(Wait::new(WaitLimit::Forever).more(Failure::plain(USAGE, "x")).await.is_err());
        let mut wait = Wait::new(WaitLimit::AtMost(Duration::from_millis(400)));
        assert!(wait.more(gone()).await.is_ok());
        let ended = loop {
            if let Err(failure) = wait.more(gone()).await {
                break failure;
            }
        };
        assert!(ended.is_unreachable() && ended.line().contains("waited 400ms"), "{}", ended.line());
    }
}
