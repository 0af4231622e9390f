//! Requests that have several answers.

use std::time::Duration;

use async_nats::{Client, Subscriber};
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::time::{Instant, timeout_at};

use crate::BusError;

/// Time after the first answer of a server until the last one of a cluster.
const FURTHER_SERVERS: Duration = Duration::from_millis(300);

/// Sends a request, and returns where its answers arrive. `what` is a gerund phrase for errors.
pub(crate) async fn ask(
    client: &Client,
    subject: impl Into<String>,
    body: Bytes,
    what: &str,
) -> Result<Subscriber, BusError> {
    let inbox = client.new_inbox();
    let answers = client.subscribe(inbox.clone()).await.map_err(BusError::failed(what))?;
    let sent = client.publish_with_reply(subject.into(), inbox, body).await;
    sent.map_err(BusError::failed(what))?;
    Ok(answers)
}

/// The answers of all servers of a cluster to a request that each of them answers once.
pub(crate) struct OfServers {
    answers: Subscriber,
    until: Instant,
}

impl OfServers {
    /// Sends the request. The first answer must arrive within `patience`.
    pub(crate) async fn ask(
        client: &Client,
        subject: impl Into<String>,
        body: Bytes,
        (what, patience): (&str, Duration),
    ) -> Result<Self, BusError> {
        let answers = ask(client, subject, body, what).await?;
        Ok(Self { answers, until: Instant::now() + patience })
    }

    /// The next answer; none after the last one.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        let answer = timeout_at(self.until, self.answers.next()).await.ok().flatten()?;
        self.until = self.until.min(Instant::now() + FURTHER_SERVERS);
        // Without a receiver, the server answers with a status and no content.
        answer.status.is_none().then_some(answer.payload)
    }
}
