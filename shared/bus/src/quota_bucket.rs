//! The quota bucket: one key for each group, one for the default quota and one for the governor's last decision.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use futures::StreamExt as _;
use model::{GovernorRecord, Group, Quota, Quotas, Sequence};

use crate::{
    Bus, BusError, Encoding, Stored, encode,
    headers::{KV_OPERATION, header},
    stream,
    transition::Write,
};

const GROUP: &str = "$KV.FOREBAY_QUOTA.group.";
const DEFAULT: &str = "$KV.FOREBAY_QUOTA.default";
const GOVERNOR: &str = "$KV.FOREBAY_QUOTA.governor";
const LIVE: &str = "forebay.quota.live.>";
const PAGE: usize = 500;

/// Selects the quota of a group or the default quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotaOf {
    /// The quota of a group.
    Group(Group),
    /// The default quota, which applies to groups without their own.
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

/// A change in the quota bucket.
#[derive(Debug, Clone, PartialEq)]
pub enum QuotaChange {
    /// A quota changed: read all of them again.
    Quotas,
    /// The governor made a decision.
    Governor(Box<GovernorRecord>),
}

/// Yields each change in the bucket. A connection loss may lose one: read everything again after a reconnection.
#[derive(Debug)]
pub struct QuotaChanges(async_nats::Subscriber);

impl QuotaChanges {
    /// The next change; `None` when the connection is closed for good.
    pub async fn next(&mut self) -> Option<QuotaChange> {
        let message = self.0.next().await?;
        let decided = message.subject.ends_with(".governor").then(|| Stored::from_live(message));
        // An unreadable record comes from another writer; reading the quotas again covers it.
        let record = decided.flatten().and_then(|(stored, _)| stored.read().ok());
        Some(record.map_or(QuotaChange::Quotas, |record| QuotaChange::Governor(Box::new(record))))
    }
}

impl Bus {
    /// Reads all quotas. A quota that cannot be read is omitted and passed to `unreadable`.
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
                let Some(whose) = whose.filter(|_| header(stored.headers.as_ref(), KV_OPERATION).is_none())
                else {
                    continue;
                };
                match (whose, stored.read::<Quota>()) {
                    (QuotaOf::Group(group), Ok(quota)) => {
                        quotas.groups.insert(group, quota);
                    }
                    (QuotaOf::Others, Ok(quota)) => quotas.default = Some(quota),
                    (_, Err(error)) => unreadable(error),
                }
            }
            if !page.more || page.events.is_empty() {
                return Ok(quotas);
            }
        }
    }

    /// Sets a quota, or deletes it if `quota` is `None`.
    pub async fn set_quota(&self, whose: &QuotaOf, quota: Option<&Quota>) -> Result<(), BusError> {
        let subject = whose.subject();
        let mut headers = HeaderMap::new();
        let payload = if let Some(quota) = quota {
            encode(Encoding::Json, quota)
        } else {
            headers.insert(KV_OPERATION, "DEL");
            Bytes::new()
        };
        let written = self.publish_once(&subject, headers, payload).await;
        written.map(drop).map_err(BusError::failed(format!("setting {subject}")))
    }

    /// The governor's last decision and its position; the default at 0 if there is none, and the default at the
    /// position of a record that cannot be read.
    pub async fn governor_record(&self) -> Result<(Sequence, GovernorRecord), BusError> {
        let last = self.last_stored(stream::QUOTA, GOVERNOR).await?;
        Ok(last.map_or_else(Default::default, |stored| (stored.sequence, stored.read().unwrap_or_default())))
    }

    /// Writes a decision of the governor if the last one is still at `expected`; returns whether it was written.
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

    /// Subscribes to all changes from now on.
    pub async fn quota_changes(&self) -> Result<QuotaChanges, BusError> {
        let subscribed = self.client.subscribe(LIVE).await;
        Ok(QuotaChanges(subscribed.map_err(BusError::failed("subscribing to quotas".to_owned()))?))
    }
}
