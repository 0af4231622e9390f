//! A message as a process published it.

use async_nats::{HeaderMap, Message, Subscriber};
use bytes::Bytes;
use futures::{
    StreamExt as _,
    stream::{SelectAll, select_all},
};
use model::{BuildRequest, Group, Priority};

use crate::{
    Bus, BusError, Encoding, LeaseChange, Message as _, RequestSubject,
    headers::{CALLER, CONTENT_TYPE, TRACEPARENT, UNREADABLE, header, message_id, traceparent},
};

/// Filter that matches every subject.
const EVERYTHING: &str = ">";

/// A message with its subject, headers and content. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Published(Message);

impl Published {
    pub(crate) fn of(message: Message) -> Self {
        Self(message)
    }

    /// A message that was not received, for example in a test.
    pub fn new(subject: &str, headers: &[(&str, &str)], payload: Bytes) -> Self {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, *value);
        }
        let length = payload.len();
        let subject = subject.into();
        Self(Message {
            subject,
            reply: None,
            payload,
            headers: Some(map),
            status: None,
            description: None,
            length,
        })
    }

    pub fn subject(&self) -> &str {
        self.0.subject.as_str()
    }

    pub fn payload(&self) -> &Bytes {
        &self.0.payload
    }

    /// The encoding of the content, by the header `Content-Type` or by its first bytes.
    pub fn encoding(&self) -> Encoding {
        Encoding::of(header(self.0.headers.as_ref(), CONTENT_TYPE), &self.0.payload)
    }

    /// Value of the header `Nats-Msg-Id`.
    pub fn message_id(&self) -> Option<&str> {
        message_id(self.0.headers.as_ref())
    }

    /// Why the message cannot be read, if its subject or its headers are malformed. Its subject and its headers are then those
    /// parts that can be read.
    pub fn fault(&self) -> Option<&str> {
        header(self.0.headers.as_ref(), UNREADABLE)
    }

    /// The W3C trace context, from header `traceparent`.
    pub fn traceparent(&self) -> Option<&str> {
        traceparent(self.0.headers.as_ref())
    }

    /// The name that the sender states for itself or for the one for whom it sends. It is not checked.
    pub fn stated_caller(&self) -> Option<&str> {
        header(self.0.headers.as_ref(), CALLER)
    }

    /// What happened to a lease, if this is a message of a bucket of leases.
    pub fn lease_change(&self) -> LeaseChange {
        LeaseChange::of(self.0.headers.as_ref())
    }
}

/// The build requests of all groups as they are published. Some may be lost; the stream has them, except those that
/// nats-server takes for repeats.
#[derive(Debug)]
pub struct PublishedRequests(SelectAll<Subscriber>);

impl PublishedRequests {
    /// The next request; `None` after the connection was closed. May be dropped and repeated without losing a message.
    pub async fn next(&mut self) -> Option<Published> {
        self.0.next().await.map(Published)
    }
}

/// Every message that passes through the bus. Some may be lost.
#[derive(Debug)]
pub struct AllMessages(Subscriber);

impl AllMessages {
    /// The next message; `None` after the connection was closed. May be dropped and repeated without losing a message.
    pub async fn next(&mut self) -> Option<Published> {
        self.0.next().await.map(Published)
    }
}

impl Bus {
    /// Subscribes to every message from now on, including requests, answers and deliveries to consumers. For
    /// measurements: nats-server delivers each message once more, and a request without a receiver
    /// is answered by a timeout.
    pub async fn all_messages(&self) -> Result<AllMessages, BusError> {
        let what = "subscribing to every message";
        let mut messages = self.client.subscribe(EVERYTHING).await.map_err(BusError::failed(what))?;
        // The server has the subscription when it delivers a message that was sent after it.
        let marker = self.client.new_inbox();
        let sent = self.client.publish(marker.clone(), Bytes::new()).await;
        sent.map_err(BusError::failed(what))?;
        while let Some(message) = messages.next().await {
            if message.subject.as_str() == marker {
                return Ok(AllMessages(messages));
            }
        }
        Err(BusError::failed(what)(std::io::Error::other("the connection closed")))
    }

    /// Stores a build request, as publishers of any language do.
    ///
    /// # Errors
    ///
    /// Fails if the user has no right to this priority of the group, or the request is not stored.
    pub async fn publish_request(
        &self,
        group: &Group,
        priority: Priority,
        request: &BuildRequest,
        trace: Option<&str>,
    ) -> Result<(), BusError> {
        let subject = RequestSubject { group: group.clone(), priority }.to_string();
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, Encoding::Json.content_type());
        if let Some(trace) = trace {
            headers.insert(TRACEPARENT, trace);
        }
        let stored = Box::pin(self.publish_once(&subject, headers, request.to_json()));
        let stored = self.unless_denied(&subject, stored).await?;
        stored.map(drop).map_err(BusError::failed(format!("publishing a build on {subject}")))
    }

    /// Subscribes to build requests from now on.
    pub async fn published_requests(&self) -> Result<PublishedRequests, BusError> {
        let client = &self.outside().await?.client;
        let mut subscribed = Vec::new();
        for priority in Priority::ALL {
            let subject = RequestSubject::filter(priority);
            let requests = client.subscribe(subject.clone()).await;
            subscribed.push(requests.map_err(BusError::failed(format!("subscribing to {subject}")))?);
        }
        Ok(PublishedRequests(select_all(subscribed)))
    }
}
