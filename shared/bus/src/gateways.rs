//! Discovery of gateways: a process that needs one asks, and the live gateways answer. Nothing is stored, so a gateway
//! that has gone leaves nothing behind.

use std::{future::Future, time::Duration};

use futures::StreamExt as _;
use model::{GatewayAddress, WhereQuestion};
use tokio::time::Instant;
use tracing::debug;

use crate::{Bus, BusError, Encoding, Subject, decode, encode};

/// Time limit for the first answer.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for further answers after the first.
const FURTHER_ANSWERS_TIMEOUT: Duration = Duration::from_millis(300);

impl Bus {
    /// Finds a live gateway, the first that answers; `host` is the machine that asks.
    pub async fn find_gateway(&self, host: &str) -> Result<Option<GatewayAddress>, BusError> {
        Ok(self.query_gateways(host, None).await?.into_iter().next())
    }

    /// Finds all gateways that answer, sorted; `host` is the machine that asks.
    pub async fn gateways(&self, host: &str) -> Result<Vec<GatewayAddress>, BusError> {
        let mut found = self.query_gateways(host, Some(FURTHER_ANSWERS_TIMEOUT)).await?;
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// The first answer; with `others` also those that arrive within that time after it.
    async fn query_gateways(
        &self,
        host: &str,
        others: Option<Duration>,
    ) -> Result<Vec<GatewayAddress>, BusError> {
        let failed = || "looking up the gateways".to_owned();
        let inbox = self.client.new_inbox();
        let mut answers = self.client.subscribe(inbox.clone()).await.map_err(BusError::failed(failed()))?;
        let question = encode(Encoding::Json, &WhereQuestion { host: host.to_owned() });
        let sent = self.client.publish_with_reply(Subject::GatewayWhere.to_string(), inbox, question).await;
        sent.map_err(BusError::failed(failed()))?;
        let mut until = Instant::now() + FIRST_ANSWER_TIMEOUT;
        let mut found = Vec::new();
        while let Ok(Some(message)) = tokio::time::timeout_at(until, answers.next()).await {
            if message.status.is_some_and(|status| status == async_nats::StatusCode::NO_RESPONDERS) {
                break;
            }
            // An answer of another version may not be readable.
            let Ok(address) = decode::<GatewayAddress>(Encoding::Json, &message.payload) else { continue };
            if found.is_empty() {
                until = Instant::now() + others.unwrap_or_default();
            }
            found.push(address);
            if others.is_none() {
                break;
            }
        }
        Ok(found)
    }

    /// Answers requests for gateways until the connection is closed for good, after announcing the new gateway;
    /// `address_for` receives the name of the machine that asks.
    pub async fn serve_gateway_address(
        &self,
        address_for: impl Fn(&str) -> Option<GatewayAddress>,
    ) -> Result<(), BusError> {
        let subscribed = self.client.subscribe(Subject::GatewayWhere.to_string()).await;
        let mut questions = subscribed.map_err(BusError::failed("answering for the gateway".to_owned()))?;
        self.say_changed(&Subject::GatewayChanged).await;
        while let Some(message) = questions.next().await {
            let Some(reply) = message.reply else { continue };
            // A question that cannot be read gets the answer for an unknown machine.
            let host = decode::<WhereQuestion>(Encoding::Json, &message.payload).map(|asked| asked.host);
            let Some(address) = address_for(&host.unwrap_or_default()) else { continue };
            if let Err(error) = self.client.publish(reply, encode(Encoding::Json, &address)).await {
                debug!(%error, "cannot answer a request for gateways");
            }
        }
        Ok(())
    }

    /// Announces a change to processes that cache the old state. If the message is lost, they notice at
    /// their next regular refresh.
    pub async fn say_changed(&self, what: &Subject) {
        if let Err(error) = self.client.publish(what.to_string(), bytes::Bytes::new()).await {
            debug!(subject = %what, %error, "cannot announce the change");
        }
    }

    /// Calls `changed` at every announcement that `what` changed, and after every reconnection.
    pub fn on_changed<F: FnMut() + Send + 'static>(
        &self,
        what: &Subject,
        mut changed: F,
    ) -> impl Future<Output = Result<(), BusError>> + Send + use<F> {
        let (client, what, mut reconnects) = (self.client.clone(), what.to_string(), self.reconnects());
        async move {
            let subscribed = client.subscribe(what.clone()).await;
            let mut announcements = subscribed.map_err(BusError::failed(format!("subscribing to {what}")))?;
            loop {
                tokio::select! {
                    message = announcements.next() => if message.is_none() { return Ok(()) },
                    () = reconnects.next() => {}
                }
                changed();
            }
        }
    }
}
