//! What nats-server reports about streams and consumers.

use async_nats::Subscriber;
use futures::{
    StreamExt as _,
    stream::{SelectAll, select_all},
};

use crate::{Bus, BusError};

/// Subjects of advisories about one consumer or one stream.
/// Advisories about API calls are left out, because each call causes one.
const SUBJECTS: [&str; 2] = ["$JS.EVENT.ADVISORY.CONSUMER.>", "$JS.EVENT.ADVISORY.STREAM.>"];
/// Each advisory is delivered to one member.
const QUEUE_GROUP: &str = "forebay-advisories";

/// What happened to a stream or a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdvisoryKind {
    /// A message reached its maximum number of deliveries and is not delivered again.
    MaxDeliver,
    /// A receiver ended the delivery of a message.
    Terminated,
    /// A receiver returned a message.
    Nak,
    /// A stream cannot be written.
    StreamQuorumLost,
    /// A consumer cannot deliver messages.
    ConsumerQuorumLost,
    /// Another server leads a stream.
    StreamLeaderElected,
    /// Another server leads a consumer.
    ConsumerLeaderElected,
    /// One of the other kinds, for example that a stream was created.
    Other,
}

impl AdvisoryKind {
    /// All kinds, in the order of declaration.
    pub const ALL: [Self; 8] = [
        Self::MaxDeliver,
        Self::Terminated,
        Self::Nak,
        Self::StreamQuorumLost,
        Self::ConsumerQuorumLost,
        Self::StreamLeaderElected,
        Self::ConsumerLeaderElected,
        Self::Other,
    ];

    /// Name as the value of a label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MaxDeliver => "max_deliver",
            Self::Terminated => "terminated",
            Self::Nak => "nak",
            Self::StreamQuorumLost => "stream_quorum_lost",
            Self::ConsumerQuorumLost => "consumer_quorum_lost",
            Self::StreamLeaderElected => "stream_leader_elected",
            Self::ConsumerLeaderElected => "consumer_leader_elected",
            Self::Other => "other",
        }
    }

    /// The kind of an advisory on `subject`.
    fn of(subject: &str) -> Self {
        let mut tokens = subject.split('.').skip(3);
        match (tokens.next(), tokens.next()) {
            (Some("CONSUMER"), Some("MAX_DELIVERIES")) => Self::MaxDeliver,
            (Some("CONSUMER"), Some("MSG_TERMINATED")) => Self::Terminated,
            (Some("CONSUMER"), Some("MSG_NAKED")) => Self::Nak,
            (Some("STREAM"), Some("QUORUM_LOST")) => Self::StreamQuorumLost,
            (Some("CONSUMER"), Some("QUORUM_LOST")) => Self::ConsumerQuorumLost,
            (Some("STREAM"), Some("LEADER_ELECTED")) => Self::StreamLeaderElected,
            (Some("CONSUMER"), Some("LEADER_ELECTED")) => Self::ConsumerLeaderElected,
            _ => Self::Other,
        }
    }
}

/// The advisories of nats-server, of which each is delivered to one subscriber of the farm. Some may be lost.
#[derive(Debug)]
pub struct Advisories(SelectAll<Subscriber>);

impl Advisories {
    /// The next advisory; `None` after the connection was closed. May be dropped and repeated without losing one.
    pub async fn next(&mut self) -> Option<AdvisoryKind> {
        self.0.next().await.map(|message| AdvisoryKind::of(&message.subject))
    }
}

impl Bus {
    /// Subscribes to the advisories about streams and consumers from now on.
    pub async fn advisories(&self) -> Result<Advisories, BusError> {
        let mut subscribed = Vec::new();
        for subject in SUBJECTS {
            let advisories = self.client.queue_subscribe(subject, QUEUE_GROUP.to_owned()).await;
            subscribed.push(advisories.map_err(BusError::failed(format!("subscribing to {subject}")))?);
        }
        Ok(Advisories(select_all(subscribed)))
    }
}

#[cfg(test)]
mod tests {
    use super::AdvisoryKind;

    #[test]
    fn the_subject_tells_the_kind() {
        for (subject, kind) in [
            ("CONSUMER.MAX_DELIVERIES.FOREBAY_REQUESTS.enqueuer-batch", AdvisoryKind::MaxDeliver),
            ("CONSUMER.MSG_TERMINATED.FOREBAY_REQUESTS.enqueuer-batch", AdvisoryKind::Terminated),
            ("CONSUMER.MSG_NAKED.FOREBAY_REQUESTS.enqueuer-batch", AdvisoryKind::Nak),
            ("STREAM.QUORUM_LOST.FOREBAY_EVENTS", AdvisoryKind::StreamQuorumLost),
            ("CONSUMER.QUORUM_LOST.FOREBAY_REQUESTS.enqueuer-batch", AdvisoryKind::ConsumerQuorumLost),
            ("STREAM.LEADER_ELECTED.FOREBAY_EVENTS", AdvisoryKind::StreamLeaderElected),
            ("CONSUMER.LEADER_ELECTED.KV_FOREBAY_LEASES.reaper-leases", AdvisoryKind::ConsumerLeaderElected),
            ("STREAM.CREATED.FOREBAY_EVENTS", AdvisoryKind::Other),
        ] {
            assert_eq!(AdvisoryKind::of(&format!("$JS.EVENT.ADVISORY.{subject}")), kind, "{subject}");
        }
    }
}
