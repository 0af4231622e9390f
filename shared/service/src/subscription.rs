//! Subscriptions that a service cannot work without: the end of one is an error of the service.

use bus::{Bus, BusError, Listener, Plain, Received};

use crate::ServiceError;

/// The plain messages of one kind.
#[derive(Debug)]
pub struct Subscription<M> {
    messages: Listener<M>,
    subject: String,
}

impl<M: Plain> Subscription<M> {
    /// Subscribes to all messages to `to`.
    pub async fn new(bus: &Bus, to: &M::To) -> Result<Self, ServiceError> {
        Self::of(to, bus.listen::<M>(to).await)
    }

    /// Subscribes to messages to `to` of which each is delivered to one member of `group` only.
    pub async fn in_group(bus: &Bus, to: &M::To, group: &str) -> Result<Self, ServiceError> {
        Self::of(to, bus.listen_in::<M>(to, group).await)
    }

    fn of(to: &M::To, subscribed: Result<Listener<M>, BusError>) -> Result<Self, ServiceError> {
        let subject = M::subject(to).to_string();
        match subscribed {
            Ok(messages) => Ok(Self { messages, subject }),
            Err(error) => Err(failed(&subject, error)),
        }
    }

    /// The next message. The call may be dropped and repeated without losing a message.
    pub async fn next(&mut self) -> Result<Received<M>, ServiceError> {
        let message = self.messages.next().await;
        message.ok_or_else(|| failed(&self.subject, "the subscription ended"))
    }
}

fn failed(subject: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ServiceError {
    ServiceError::failed(format!("subscribing to {subject}"), source)
}
