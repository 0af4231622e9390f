//! Discovery of gateways: a process that needs one asks, and the live gateways answer. Nothing is stored, so a gateway
//! that has gone leaves nothing behind.

use std::time::Duration;

use futures::StreamExt as _;
use model::{GatewayAddress, WhereQuestion};
use tokio::time::Instant;
use tracing::debug;

use crate::{Bus, BusError, FromJson as _, Message, Subject, message, several};

message!(GatewayAddress, WhereQuestion);

/// Time limit for the first answer.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for further answers after the first.
const FURTHER_ANSWERS_TIMEOUT: Duration = Duration::from_millis(300);

/// Finds the gateways that are alive, and answers for one.
#[derive(Debug, Clone, Copy)]
pub struct Gateways<'a> {
    bus: &'a Bus,
}

impl Bus {
    /// Finds the gateways that are alive, and answers for one.
    pub fn gateways(&self) -> Gateways<'_> {
        Gateways { bus: self }
    }
}

impl Gateways<'_> {
    /// Finds the first that answers; `host` is the machine that asks.
    pub async fn find(self, host: &str) -> Result<Option<GatewayAddress>, BusError> {
        Ok(self.query(host, None).await?.into_iter().next())
    }

    /// Finds all that answer, sorted; `host` is the machine that asks.
    pub async fn all(self, host: &str) -> Result<Vec<GatewayAddress>, BusError> {
        let mut found = self.query(host, Some(FURTHER_ANSWERS_TIMEOUT)).await?;
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// The first answer; with `others` also those that arrive within that time after it.
    async fn query(self, host: &str, others: Option<Duration>) -> Result<Vec<GatewayAddress>, BusError> {
        let (subject, what) = (Subject::GatewayWhere.to_string(), "looking up the gateways");
        let question = WhereQuestion { host: host.to_owned() }.to_json();
        let mut answers = several::ask(&self.bus.client, subject, question, what).await?;
        let mut until = Instant::now() + FIRST_ANSWER_TIMEOUT;
        let mut found = Vec::new();
        while let Ok(Some(message)) = tokio::time::timeout_at(until, answers.next()).await {
            if message.status.is_some_and(|status| status == async_nats::StatusCode::NO_RESPONDERS) {
                break;
            }
            // An answer of another version may not be readable.
            let Ok(address) = GatewayAddress::from_json(&message.payload) else { continue };
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
    pub async fn serve_address(
        self,
        address_for: impl Fn(&str) -> Option<GatewayAddress>,
    ) -> Result<(), BusError> {
        let subscribed = self.bus.client.subscribe(Subject::GatewayWhere.to_string()).await;
        let mut questions = subscribed.map_err(BusError::failed("answering for the gateway".to_owned()))?;
        self.bus.say_changed(&Subject::GatewayChanged).await;
        while let Some(message) = questions.next().await {
            let Some(reply) = message.reply else { continue };
            // A question that cannot be read gets the answer for an unknown machine.
            let host = WhereQuestion::from_json(&message.payload).map(|asked| asked.host);
            let Some(address) = address_for(&host.unwrap_or_default()) else { continue };
            if let Err(error) = self.bus.client.publish(reply, address.to_json()).await {
                debug!(%error, "cannot answer a request for gateways");
            }
        }
        Ok(())
    }
}
