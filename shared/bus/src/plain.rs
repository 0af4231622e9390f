//! Plain messages between processes of the farm: typed, in JSON, not stored. They may be lost; messages that must not
//! be lost are stored in a stream.

use std::{future::Future, marker::PhantomData, time::Duration};

use async_nats::{Request, Subscriber, client::RequestErrorKind};
use bytes::Bytes;
use futures::StreamExt as _;
use tracing::{debug, warn};

use crate::{Bus, BusError, DecodeError, FromJson as _, Message, Subject, several};

/// A message of one kind. The module `messages` lists all kinds with their senders and receivers.
pub trait Plain: Message + 'static {
    /// Name of the message in logs, with its article: "an offer".
    const NAME: &'static str;
    /// Which receivers get it: `()` for all, or the id of one.
    type To: ?Sized;
    /// Content of the answer; `()` for messages without one.
    type Answer: Message;

    /// The subject of the message.
    fn subject(to: &Self::To) -> Subject;
}

/// A heartbeat of processes that run work.
pub trait HeartbeatMessage: Plain<To = (), Answer = ()> + Sync {
    /// The signal on which all senders send a heartbeat at once.
    fn request() -> Subject;
}

/// A request without a usable answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// No process is subscribed: certainly no one acts on the request.
    #[error("no process listens on {subject}")]
    NoListener { subject: String },
    /// It was not sent: no one acts on it.
    #[error("the message to {subject} is larger than nats-server accepts (max_payload)")]
    TooLarge { subject: String },
    /// The answer did not arrive in time, or the connection was lost: a process may act on the request.
    #[error("no answer on {subject}")]
    Unknown {
        subject: String,
        #[source]
        source: async_nats::client::RequestError,
    },
    #[error("the answer on {subject} cannot be read")]
    Unreadable {
        subject: String,
        #[source]
        source: DecodeError,
    },
}

impl Bus {
    /// Sends a message. Success means that the connection accepted it, not that it was received.
    pub async fn send<M: Plain>(&self, to: &M::To, message: &M) -> Result<(), BusError> {
        let subject = M::subject(to).to_string();
        let sent = self.client.publish(subject, message.to_json()).await;
        sent.map_err(BusError::failed(format!("sending {}", M::NAME)))
    }

    /// Sends a message; a failure is logged at the level `debug`.
    pub async fn send_or_log<M: Plain>(&self, to: &M::To, message: &M) {
        if let Err(error) = self.send(to, message).await {
            debug!(error = telemetry::error_chain(&error), "a message was not sent");
        }
    }

    /// Sends a message and waits for its answer, at most for `limit` or the timeout of the connection.
    pub async fn answer_to<M: Plain>(
        &self,
        to: &M::To,
        message: &M,
        limit: Option<Duration>,
    ) -> Result<M::Answer, NoAnswer> {
        let subject = M::subject(to).to_string();
        let mut request = Request::new().payload(message.to_json());
        if limit.is_some() {
            request = request.timeout(limit);
        }
        match self.client.send_request(subject.clone(), request).await {
            Ok(answer) => M::Answer::from_json(&answer.payload)
                .map_err(|source| NoAnswer::Unreadable { subject, source }),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => {
                Err(NoAnswer::NoListener { subject })
            }
            Err(error) if error.kind() == RequestErrorKind::MaxPayloadExceeded => {
                Err(NoAnswer::TooLarge { subject })
            }
            Err(source) => Err(NoAnswer::Unknown { subject, source }),
        }
    }

    /// Sends a message and returns the answers of all its receivers as they come.
    pub async fn answers_to<M: Plain>(
        &self,
        to: &M::To,
        message: &M,
    ) -> Result<Answers<M::Answer>, BusError> {
        let (subject, what) = (M::subject(to).to_string(), format!("sending {}", M::NAME));
        let answers = several::ask(&self.client, subject, message.to_json(), &what).await?;
        Ok(Answers { answers, kind: PhantomData })
    }

    /// Subscribes to all messages of a kind.
    pub async fn listen<M: Plain>(&self, to: &M::To) -> Result<Listener<M>, BusError> {
        let subscribed = self.client.subscribe(M::subject(to).to_string()).await;
        let messages = subscribed.map_err(BusError::failed(format!("subscribing to {}", M::NAME)))?;
        Ok(Listener { bus: self.clone(), messages, kind: PhantomData })
    }

    /// Subscribes to messages of a kind of which each is delivered to one member of `group` only.
    pub async fn listen_in<M: Plain>(&self, to: &M::To, group: &str) -> Result<Listener<M>, BusError> {
        let subject = M::subject(to).to_string();
        let subscribed = self.client.queue_subscribe(subject, group.to_owned()).await;
        let messages = subscribed.map_err(BusError::failed(format!("subscribing to {}", M::NAME)))?;
        Ok(Listener { bus: self.clone(), messages, kind: PhantomData })
    }

    /// Sends a message without content.
    pub async fn signal(&self, subject: &Subject) -> Result<(), BusError> {
        let sent = self.client.publish(subject.to_string(), Bytes::new()).await;
        sent.map_err(BusError::failed(format!("signalling on {subject}")))
    }

    /// Subscribes to messages whose content does not matter.
    pub async fn signals(&self, subject: &Subject) -> Result<Signals, BusError> {
        self.signals_on(subject.to_string()).await
    }

    /// Announces a change to processes that cache the old state. If the message is lost, they notice at
    /// their next regular refresh.
    pub async fn say_changed(&self, what: &Subject) {
        if let Err(error) = self.client.publish(what.to_string(), Bytes::new()).await {
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

    pub(crate) async fn signals_on(&self, subject: String) -> Result<Signals, BusError> {
        let subscribed = self.client.subscribe(subject.clone()).await;
        Ok(Signals(subscribed.map_err(BusError::failed(format!("subscribing to {subject}")))?))
    }
}

/// Answers to one message, as they come.
#[derive(Debug)]
pub struct Answers<A> {
    answers: Subscriber,
    kind: PhantomData<fn() -> A>,
}

impl<A: Message> Answers<A> {
    /// The next answer; `None` after the connection was closed. An unreadable answer is skipped.
    pub async fn next(&mut self) -> Option<A> {
        loop {
            match A::from_json(&self.answers.next().await?.payload) {
                Ok(answer) => return Some(answer),
                Err(error) => debug!(error = telemetry::error_chain(&error), "skipping an unreadable answer"),
            }
        }
    }
}

/// The messages of one kind, as they come.
#[derive(Debug)]
pub struct Listener<M> {
    bus: Bus,
    messages: Subscriber,
    kind: PhantomData<fn() -> M>,
}

impl<M: Plain> Listener<M> {
    /// The next message; `None` after the connection was closed. A message that cannot be read is logged and skipped.
    /// The call may be dropped and repeated without losing a message.
    pub async fn next(&mut self) -> Option<Received<M>> {
        loop {
            let message = self.messages.next().await?;
            match M::from_json(&message.payload) {
                Ok(content) => {
                    let reply = message.reply.map(|subject| Reply { bus: self.bus.clone(), subject });
                    return Some(Received { content, json: message.payload, reply });
                }
                Err(error) => {
                    warn!(error = telemetry::error_chain(&error), subject = %message.subject, "cannot read {}", M::NAME);
                }
            }
        }
    }
}

/// A message, and where its answer goes.
#[derive(Debug)]
pub struct Received<M> {
    pub content: M,
    /// The content as it was sent.
    pub json: Bytes,
    reply: Option<Reply>,
}

impl<M: Plain> Received<M> {
    /// Whether the sender waits for an answer.
    pub fn wants_answer(&self) -> bool {
        self.reply.is_some()
    }

    /// Separates the content from the means to answer it.
    pub fn split(self) -> (M, Answering<M>) {
        (self.content, Answering { reply: self.reply, kind: PhantomData })
    }
}

/// Answers one message of kind `M`.
#[derive(Debug)]
pub struct Answering<M> {
    reply: Option<Reply>,
    kind: PhantomData<fn() -> M>,
}

impl<M: Plain> Answering<M> {
    /// Sends the answer, if the sender waits for one. It may be lost: a failure is logged only.
    pub async fn send(self, answer: &M::Answer) {
        let Some(Reply { bus, subject }) = self.reply else { return };
        if let Err(error) = bus.client.publish(subject, answer.to_json()).await {
            debug!(%error, "cannot answer {}", M::NAME);
        }
    }
}

#[derive(Debug)]
struct Reply {
    bus: Bus,
    subject: async_nats::Subject,
}

/// Messages whose content does not matter.
#[derive(Debug)]
pub struct Signals(Subscriber);

impl Signals {
    /// Returns at the next signal; `None` after the connection was closed.
    pub async fn next(&mut self) -> Option<()> {
        self.0.next().await.map(drop)
    }
}
