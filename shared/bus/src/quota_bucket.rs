//! The bucket of quotas: one key a group, and one with what the governor decided last.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use futures::StreamExt as _;
use model::{GovernorRecord, Group, Quota, Quotas, Sequence};

use crate::{Bus, BusError, Encoding, Stored, encode, headers::header, stream, transition::Write};

const GROUP: &str = "$KV.FOREBAY_QUOTA.group.";
const DEFAULT: &str = "$KV.FOREBAY_QUOTA.default";
const GOVERNOR: &str = "$KV.FOREBAY_QUOTA.governor";
const LIVE: &str = "forebay.quota.live.>";
/// What key-value clients write in the place of what they delete.
const OPERATION: &str = "KV-Operation";
const PAGE: usize = 500;

/// Whose quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotaOf {
    /// That of a group.
    Group(Group),
    /// That of all groups without one of their own.
    Others,
}

impl QuotaOf {
    fn subject(&self) -> String {
        match self {
            Self::Group(group) => format!("{GROUP}{group}"),
            Self::Others => DEFAULT.to_owned(),
        }
    }
}

/// What changed in the bucket.
#[derive(Debug, Clone, PartialEq)]
pub enum QuotaChange {
    /// A quota: read them all again.
    Quotas,
    /// The governor decided.
    Governor(Box<GovernorRecord>),
}

/// Told whenever something in the bucket changes. May lose a change with the connection: read again when that came back.
#[derive(Debug)]
pub struct QuotaChanges(async_nats::Subscriber);

impl QuotaChanges {
    /// The next change; `None` when the connection is gone for good.
    pub async fn next(&mut self) -> Option<QuotaChange> {
        let message = self.0.next().await?;
        let decided = message.subject.ends_with(".governor").then(|| Stored::from_live(message));
        // What cannot be read is somebody else's; the quotas are read again and tell.
        let record = decided.flatten().and_then(|(stored, _)| stored.read().ok());
        Some(record.map_or(QuotaChange::Quotas, |record| QuotaChange::Governor(Box::new(record))))
    }
}

impl Bus {
    /// All quotas. A quota that cannot be read is left out, and told by `unreadable`.
    pub async fn quotas(&self, mut unreadable: impl FnMut(BusError)) -> Result<Quotas, BusError> {
        let mut quotas = Quotas::default();
        let mut from = Sequence(1);
        loop {
            let page = self.stored_from(stream::QUOTA, "$KV.FOREBAY_QUOTA.>", from, PAGE).await?;
            for stored in &page.events {
                from = Sequence(stored.sequence.0 + 1);
                let whose = match stored.subject.strip_prefix(GROUP) {
                    Some(name) => name.parse().ok().map(QuotaOf::Group),
                    None => (stored.subject == DEFAULT).then_some(QuotaOf::Others),
                };
                let Some(whose) = whose.filter(|_| header(stored.headers.as_ref(), OPERATION).is_none())
                else {
                    continue;
                };
                match (whose, stored.read::<Quota>()) {
                    (QuotaOf::Group(group), Ok(quota)) => drop(quotas.groups.insert(group, quota)),
                    (QuotaOf::Others, Ok(quota)) => quotas.default = Some(quota),
                    (_, Err(error)) => unreadable(error),
                }
            }
            if !page.more || page.events.is_empty() {
                return Ok(quotas);
            }
        }
    }

    /// Sets a quota, or takes it away.
    pub async fn set_quota(&self, whose: &QuotaOf, quota: Option<&Quota>) -> Result<(), BusError> {
        let subject = whose.subject();
        let mut headers = HeaderMap::new();
        let payload = if let Some(quota) = quota {
            encode(Encoding::Json, quota)
        } else {
            headers.insert(OPERATION, "DEL");
            Bytes::new()
        };
        let written = self.publish_once(&subject, headers, payload).await;
        written.map(drop).map_err(BusError::failed(format!("setting {subject}")))
    }

    /// What the governor decided last, and its position; the default at 0 when it never did, or when what stands there
    /// cannot be read.
    pub async fn governor_record(&self) -> Result<(Sequence, GovernorRecord), BusError> {
        let last = self.last_stored(stream::QUOTA, GOVERNOR).await?;
        Ok(last.map_or_else(Default::default, |stored| (stored.sequence, stored.read().unwrap_or_default())))
    }

    /// Writes what a governor decided if the last decision is still the one at `expected`; says whether.
    pub async fn write_governor_record(
        &self,
        record: &GovernorRecord,
        expected: Sequence,
        patience: Duration,
    ) -> Result<Option<Sequence>, BusError> {
        let payload = encode(Encoding::Json, record);
        let write = Write::new(stream::QUOTA, GOVERNOR.to_owned(), expected, payload);
        Ok(self.compare_and_set(&write, patience).await?.ok())
    }

    /// Tells of every change from now on.
    pub async fn quota_changes(&self) -> Result<QuotaChanges, BusError> {
        let subscribed = self.client.subscribe(LIVE).await;
        Ok(QuotaChanges(subscribed.map_err(BusError::failed("subscribing to quotas".to_owned()))?))
    }
}
