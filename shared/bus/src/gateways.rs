//! Where the gateways are: a process that needs one asks, and those that live answer. Nothing is stored, so nothing of a gateway that
//! has gone is left.

use std::{future::Future, time::Duration};

use futures::StreamExt as _;
use model::{GatewayAddress, WhereQuestion};
use tokio::time::Instant;

use crate::{Bus, BusError, Encoding, Subject, decode, encode};

/// How long the first answer may take.
const FIRST: Duration = Duration::from_secs(2);
/// How long the others may take after it.
const OTHERS: Duration = Duration::from_millis(300);

impl Bus {
    /// A gateway that lives, the first that answers; `host` is the machine that asks.
    pub async fn find_gateway(&self, host: &str) -> Result<Option<GatewayAddress>, BusError> {
        Ok(self.asked_gateways(host, None).await?.into_iter().next())
    }

    /// All gateways that answer, sorted; `host` is the machine that asks.
    pub async fn gateways(&self, host: &str) -> Result<Vec<GatewayAddress>, BusError> {
        let mut found = self.asked_gateways(host, Some(OTHERS)).await?;
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// The first answer; with `others` also those that come within that time of it.
    async fn asked_gateways(
        &self,
        host: &str,
        others: Option<Duration>,
    ) -> Result<Vec<GatewayAddress>, BusError> {
        let failed = || "asking for the gateways".to_owned();
        let inbox = self.client.new_inbox();
        let mut answers = self.client.subscribe(inbox.clone()).await.map_err(BusError::failed(failed()))?;
        let question = encode(Encoding::Json, &WhereQuestion { host: host.to_owned() });
        let sent = self.client.publish_with_reply(Subject::GatewayWhere.to_string(), inbox, question).await;
        sent.map_err(BusError::failed(failed()))?;
        let mut until = Instant::now() + FIRST;
        let mut found = Vec::new();
        while let Ok(Some(message)) = tokio::time::timeout_at(until, answers.next()).await {
            if message.status.is_some_and(|status| status == async_nats::StatusCode::NO_RESPONDERS) {
                break;
            }
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

    /// Answers those who ask for gateways, until the connection is gone for good; `address_for` is given the machine that asks.
    /// Says at once that there is one more.
    pub async fn serve_gateway_address(
        &self,
        address_for: impl Fn(&str) -> Option<GatewayAddress>,
    ) -> Result<(), BusError> {
        let subscribed = self.client.subscribe(Subject::GatewayWhere.to_string()).await;
        let mut questions = subscribed.map_err(BusError::failed("answering for the gateway".to_owned()))?;
        self.say_changed(&Subject::GatewayChanged).await;
        while let Some(message) = questions.next().await {
            let Some(reply) = message.reply else { continue };
            let host = decode::<WhereQuestion>(Encoding::Json, &message.payload).map(|asked| asked.host);
            let Some(address) = address_for(&host.unwrap_or_default()) else { continue };
            let _ = self.client.publish(reply, encode(Encoding::Json, &address)).await;
        }
        Ok(())
    }

    /// Says that something changed that others remember. A lost message costs them the time after which they look anyway.
    pub async fn say_changed(&self, what: &Subject) {
        let _ = self.client.publish(what.to_string(), bytes::Bytes::new()).await;
    }

    /// Calls `changed` whenever it is said that `what` changed, and when the connection came back.
    pub fn on_changed<F: FnMut() + Send + 'static>(
        &self,
        what: &Subject,
        mut changed: F,
    ) -> impl Future<Output = Result<(), BusError>> + Send + use<F> {
        let (client, what, mut reconnects) = (self.client.clone(), what.to_string(), self.reconnects());
        async move {
            let subscribed = client.subscribe(what.clone()).await;
            let mut said = subscribed.map_err(BusError::failed(format!("subscribing to {what}")))?;
            loop {
                tokio::select! {
                    message = said.next() => if message.is_none() { return Ok(()) },
                    () = reconnects.next() => {}
                }
                changed();
            }
        }
    }
}
