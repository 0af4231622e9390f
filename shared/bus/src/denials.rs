//! Requests that nats-server denies. It answers them with an error of the connection, which names the subject, and the
//! requests themselves would wait until their time limit.

use std::{collections::HashMap, future::Future, sync::Arc};

use credentials::BusUser;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The user of the connection has no right to a subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("nats-server denies {subject} to {}: {}", name_of(.user.as_ref()), advice(.user.as_ref()))]
pub struct Denied {
    pub subject: String,
    /// The user of the connection, if it proved to be one.
    pub user: Option<BusUser>,
}

/// The name of a user as `forebay access` has it.
fn name(user: &BusUser) -> String {
    user.to_string().replacen('.', "/", 1)
}

/// A user as messages name it; without one, its connection.
pub(crate) fn name_of(user: Option<&BusUser>) -> String {
    user.map_or_else(|| "this connection".to_owned(), |user| format!("the user {}", name(user)))
}

fn advice(user: Option<&BusUser>) -> String {
    match user {
        Some(user) => {
            format!("`forebay access show {}` lists what it may use; operators can grant more", name(user))
        }
        None => "set seed_file to the key of a user who may use it".to_owned(),
    }
}

/// The requests of a connection that may be denied. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Denials(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    requests: HashMap<u64, (String, oneshot::Sender<()>)>,
}

/// Forgets a request when it ends.
struct Registered<'a>(&'a Denials, u64);

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.0.0.lock().requests.remove(&self.1);
    }
}

impl Denials {
    /// Ends the requests that an error of the server is about; whether there were any.
    pub(crate) fn note(&self, error: &str) -> bool {
        let Some(subject) = denied_subject(error) else { return false };
        let mut waiting = self.0.lock();
        let found = waiting.requests.extract_if(|_, (of, _)| of == subject).collect::<Vec<_>>();
        drop(waiting);
        let any = !found.is_empty();
        for (_, (_, ended)) in found {
            // The request may have ended meanwhile.
            let _ = ended.send(());
        }
        any
    }

    /// Waits for a request on `subject`; `None` if the server denies it.
    pub(crate) async fn unless_denied<T>(
        &self,
        subject: &str,
        request: impl Future<Output = T>,
    ) -> Option<T> {
        let (sender, denied) = oneshot::channel();
        let registered = {
            let mut waiting = self.0.lock();
            let number = waiting.next;
            waiting.next += 1;
            waiting.requests.insert(number, (subject.to_owned(), sender));
            Registered(self, number)
        };
        let outcome = tokio::select! {
            biased;
            outcome = request => Some(outcome),
            Ok(()) = denied => None,
        };
        drop(registered);
        outcome
    }
}

/// The subject that an error of nats-server denies for publishing.
fn denied_subject(error: &str) -> Option<&str> {
    let (_, rest) = error.split_once("Permissions Violation for Publish to \"")?;
    rest.split_once('"').map(|(subject, _)| subject)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERROR: &str = "nats: Permissions Violation for Publish to \"forebay.api.get.others\"";

    #[test]
    fn the_subject_is_read_from_the_error() {
        assert_eq!(denied_subject(ERROR), Some("forebay.api.get.others"));
        assert_eq!(denied_subject("nats: Permissions Violation for Subscription to \"a\""), None);
        assert_eq!(denied_subject("nats: Stale Connection"), None);
    }

    #[tokio::test]
    async fn only_requests_on_the_denied_subject_end() {
        let denials = Denials::default();
        let never = std::future::pending::<()>;
        let answered = std::future::ready(7);
        let (denied, other) = tokio::join!(
            denials.unless_denied("forebay.api.get.others", never()),
            denials.unless_denied("forebay.api.get.own", async {
                assert!(denials.note(ERROR));
                answered.await
            }),
        );
        assert_eq!((denied, other), (None, Some(7)));
        // Nothing waits any more.
        assert!(!denials.note(ERROR));
        assert!(denials.0.lock().requests.is_empty());
    }
}
