//! Retries calls while the farm is unreachable or full: that is not a failure of a task.

use std::{borrow::Borrow, time::Duration};

use remote::RemoteError;
use tokio::{sync::watch, time::Instant};
use tonic::Code;

/// Maximum time to retry while the farm is unreachable.
const PATIENCE: Duration = Duration::from_secs(60);
/// First wait; each further wait is twice as long, up to the longest.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// A call that is retried longer than this is reported.
const QUIET: Duration = Duration::from_secs(3);

/// Whether the farm answers the calls of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answering {
    Well,
    /// It does not answer, or not as wanted: calls are retried. The line says so, with the reason.
    Late(String),
    /// It did not answer for the maximum time, for this reason.
    NotAtAll(String),
}

/// Retries calls while the farm is unreachable or full, or a registry of images does not answer, for up to a minute, and reports
/// the state. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    answering: watch::Sender<Answering>,
}

impl Patience {
    /// Assumes at first that the farm answers.
    pub(crate) fn new() -> Self {
        Self { answering: watch::channel(Answering::Well).0 }
    }

    /// Subscribes to changes of the farm's state.
    pub(crate) fn listen(&self) -> watch::Receiver<Answering> {
        self.answering.subscribe()
    }

    /// Retries a call while the farm is unreachable or full.
    pub(crate) async fn patiently<T, E, F>(&self, mut call: impl FnMut() -> F) -> Result<T, E>
    where
        E: Borrow<RemoteError>,
        F: Future<Output = Result<T, E>>,
    {
        let began = Instant::now();
        let until = began + PATIENCE;
        let mut wait = FIRST;
        loop {
            match call().await {
                Err(error) if may_pass(error.borrow()) && Instant::now() + wait < until => {
                    if began.elapsed() >= QUIET {
                        self.late(error.borrow());
                    }
                    tokio::time::sleep(wait).await;
                    wait = (2 * wait).min(LONGEST);
                }
                // Without credentials that are accepted, no task can run here: another worker may have some.
                Err(error) if error.borrow().is_unreachable() || error.borrow().lacks_credentials() => {
                    let reason = telemetry::error_chain(error.borrow());
                    self.answering.send_replace(Answering::NotAtAll(reason));
                    return Err(error);
                }
                // The registry still does not answer: nothing has changed.
                Err(error) if error.borrow().is_registry_unavailable() => return Err(error),
                ended => {
                    self.answering.send_if_modified(|answering| {
                        let was_late = matches!(answering, Answering::Late(_));
                        if was_late {
                            *answering = Answering::Well;
                        }
                        was_late
                    });
                    return ended;
                }
            }
        }
    }

    fn late(&self, error: &RemoteError) {
        self.answering.send_if_modified(|answering| {
            let is_news = *answering == Answering::Well;
            if is_news {
                let what = if error.is_unreachable() { "does not answer" } else { "cannot run a task now" };
                let reason = telemetry::error_chain(error);
                *answering = Answering::Late(format!("the farm's gateway {what}, retrying: {reason}"));
            }
            is_news
        });
    }
}

fn may_pass(error: &RemoteError) -> bool {
    let is_full = match error {
        RemoteError::Refused { status, .. } => status.code() == Code::ResourceExhausted,
        RemoteError::Unreachable { .. }
        | RemoteError::Lost { .. }
        | RemoteError::Missing { .. }
        | RemoteError::File { .. }
        | RemoteError::Answer { .. } => false,
    };
    is_full || error.is_unreachable() || error.lacks_credentials() || error.is_registry_unavailable()
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
        let patience = Patience::new();
        let heard = patience.listen();
        let answer = patience.patiently(|| {
            calls.set(calls.get() + 1);
            let answer = if calls.get() < 4 { Err(refused(Code::Unavailable)) } else { Ok(7) };
            std::future::ready(answer)
        });
        assert_eq!(answer.await.unwrap(), 7);
        assert!(!heard.has_changed().unwrap(), "a short delay is not reported");
    }

    #[tokio::test(start_paused = true)]
    async fn but_not_for_ever_and_not_when_it_says_no() {
        let began = Instant::now();
        let answer: Result<(), RemoteError> =
            Patience::new().patiently(|| std::future::ready(Err(refused(Code::ResourceExhausted)))).await;
        assert!(answer.is_err());
        assert!(began.elapsed() > PATIENCE / 2 && began.elapsed() <= PATIENCE, "{:?}", began.elapsed());
        let began = Instant::now();
        let answer: Result<(), RemoteError> =
            Patience::new().patiently(|| std::future::ready(Err(refused(Code::InvalidArgument)))).await;
        assert!(answer.is_err() && began.elapsed().is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn a_registry_that_does_not_answer_is_waited_for_and_named() {
        let patience = Patience::new();
        let mut heard = patience.listen();
        let call = patience.patiently(|| {
            let status = reapi::status::registry_unavailable("the registry r.example", Duration::ZERO);
            let error = RemoteError::Refused { what: "x".into(), status: Box::new(status) };
            std::future::ready(Err::<(), _>(error))
        });
        let error = call.await.unwrap_err();
        assert!(error.to_string().contains("r.example"), "{error}");
        let Answering::Late(line) = heard.borrow_and_update().clone() else { panic!("{heard:?}") };
        assert!(line.contains("r.example") && !line.contains("does not answer"), "{line}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_listens_hears_that_the_farm_does_not_answer() {
        let patience = Patience::new();
        let mut heard = patience.listen();
        let caller = patience.clone();
        let call = tokio::spawn(async move {
            let answer: Result<(), RemoteError> =
                caller.patiently(|| std::future::ready(Err(refused(Code::Unavailable)))).await;
            answer
        });
        let began = Instant::now();
        heard.changed().await.unwrap();
        assert!(matches!(&*heard.borrow_and_update(), Answering::Late(_)), "it is reported during the wait");
        assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
        heard.changed().await.unwrap();
        assert!(matches!(&*heard.borrow_and_update(), Answering::NotAtAll(_)));
        assert!(call.await.unwrap().is_err());
        assert!(patience.patiently(|| std::future::ready(Ok::<_, RemoteError>(()))).await.is_ok());
    }
}
