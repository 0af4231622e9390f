//! Whether nats-server admits the user of a connection.

use std::{sync::Arc, time::Duration};

use async_nats::{ClientError, ConnectErrorKind, Event};
use tokio::{sync::watch, time::Instant};

/// Time for which nats-server refuses a user before it counts as refused: while keys are replaced, it may refuse for a moment.
const REFUSED_AFTER: Duration = Duration::from_secs(10);

/// The server does not accept the key, or there is none to prove who the user is.
const REFUSALS: [ConnectErrorKind; 2] =
    [ConnectErrorKind::AuthorizationViolation, ConnectErrorKind::Authentication];

/// Since when nats-server has refused all attempts to connect. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Admission(Arc<watch::Sender<Option<Instant>>>);

impl Default for Admission {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Admission {
    /// Notes what happened to the connection.
    pub(crate) fn on(&self, event: &Event) {
        let is_refused = match event {
            Event::Connected => false,
            // An attempt to connect has failed. The client passes on the text of the error only.
            Event::ClientError(ClientError::Other(error)) => {
                REFUSALS.iter().any(|kind| *error == kind.to_string())
            }
            Event::Disconnected
            | Event::LameDuckMode
            | Event::Draining
            | Event::Closed
            | Event::SlowConsumer(_)
            | Event::ServerError(_)
            | Event::ClientError(_) => return,
        };
        self.0.send_if_modified(|since| {
            let is_new = since.is_some() != is_refused;
            if is_new {
                *since = is_refused.then(Instant::now);
            }
            is_new
        });
    }

    /// Returns when the server has refused the user for ten seconds.
    pub(crate) async fn refused(&self) {
        let mut refused = self.0.subscribe();
        loop {
            let since = *refused.borrow_and_update();
            let too_long = async {
                match since {
                    Some(since) => tokio::time::sleep_until(since + REFUSED_AFTER).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = too_long => return,
                changed = refused.changed() => {
                    if changed.is_err() {
                        // The connection is closed for good; callers end by other means.
                        std::future::pending::<()>().await;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_user_is_refused_after_ten_seconds_without_a_connection() {
        let admission = Admission::default();
        let fail = |why: ConnectErrorKind| {
            admission.on(&Event::ClientError(ClientError::Other(why.to_string())));
        };
        let refuse = || fail(ConnectErrorKind::AuthorizationViolation);
        let within = async |seconds: u64| {
            tokio::time::timeout(Duration::from_millis(seconds * 1000 + 1), admission.refused()).await.is_ok()
        };
        refuse();
        assert!(!within(9).await);
        refuse();
        assert!(within(1).await);
        admission.on(&Event::Connected);
        assert!(!within(60).await);
        // The file of the key is gone.
        fail(ConnectErrorKind::Authentication);
        assert!(!within(9).await);
        // The server does not answer at all.
        fail(ConnectErrorKind::Io);
        assert!(!within(60).await);
    }
}
