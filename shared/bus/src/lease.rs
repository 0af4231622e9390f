//! Leases: who owns a build, with a time to live and a fencing number (DESIGN §3).
//!
//! Written by raw publishes: the client library's key-value calls drop the time to live over a
//! marker, which would make a lease immortal.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use model::{BuildKey, Sequence, WorkerId};
use serde::{Deserialize, Serialize};

use crate::{
    Bus, BusError, Encoding, LeaseSubject, Stored, decode, encode,
    headers::{EXPECTED, KV_OPERATION, MARKER_REASON, ROLLUP, TTL, WRITER, header},
    stream,
    transition::Write,
};

/// A lease that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// On which build.
    pub key: BuildKey,
    /// By whom.
    pub holder: LeaseHolder,
    /// Its revision: the position of its last renewal.
    pub revision: Sequence,
}

/// What a lease says of its holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHolder {
    /// The worker.
    pub worker: WorkerId,
    /// Seconds to live.
    pub ttl_seconds: u64,
}

/// What became of an attempt to take a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// It is ours.
    Held(Lease),
    /// Someone else holds it.
    Taken,
}

/// What became of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// It is still ours.
    Held,
    /// It ran out, was released, or passed to another.
    Lost,
}

/// What a message of the lease bucket tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseChange {
    /// It was taken or renewed.
    Held,
    /// It was released.
    Released,
    /// Its time to live passed.
    Expired,
}

impl LeaseChange {
    /// Reads the headers of a message of the lease bucket.
    pub fn of(headers: Option<&HeaderMap>) -> Self {
        match (header(headers, MARKER_REASON), header(headers, KV_OPERATION)) {
            (Some("MaxAge"), _) => Self::Expired,
            (Some(_), _) | (None, Some("PURGE" | "DEL")) => Self::Released,
            (None, _) => Self::Held,
        }
    }
}

const REVOKE_TRIES: u32 = 3;
/// How long the trace of a released lease stays.
const RELEASED_TTL_SECONDS: u64 = 1;

impl Bus {
    /// Takes the lease on `key` if nobody holds it.
    pub async fn acquire_lease(
        &self,
        key: &BuildKey,
        holder: LeaseHolder,
        patience: Duration,
    ) -> Result<Acquired, BusError> {
        let mut expected = Sequence(0);
        // A second round where an old marker stands, a third where it went meanwhile.
        for _ in 0..3 {
            let write = lease_write(key, &holder, expected);
            match self.compare_and_set(&write, expected, patience).await? {
                Ok(revision) => return Ok(Acquired::Held(Lease { key: key.clone(), holder, revision })),
                Err(None) => expected = Sequence(0),
                Err(Some(last)) if LeaseChange::of(last.headers.as_ref()) == LeaseChange::Held => {
                    return Ok(Acquired::Taken);
                }
                Err(Some(last)) => expected = last.sequence,
            }
        }
        Ok(Acquired::Taken)
    }

    /// Renews `lease`, if it is still ours.
    pub async fn renew_lease(&self, lease: &mut Lease, patience: Duration) -> Result<Renewed, BusError> {
        let write = lease_write(&lease.key, &lease.holder, lease.revision);
        match self.compare_and_set(&write, lease.revision, patience).await? {
            Ok(revision) => {
                lease.revision = revision;
                Ok(Renewed::Held)
            }
            Err(_) => Ok(Renewed::Lost),
        }
    }

    /// Releases `lease`, if it is still ours; a lost answer does no harm, it expires.
    pub async fn release_lease(&self, lease: &Lease) -> Result<(), BusError> {
        self.purge_lease(&lease.key, lease.revision).await.map(drop)
    }

    /// Ends the lease on `key`, whoever holds it: for those who ended its build.
    pub async fn revoke_lease(&self, key: &BuildKey) -> Result<(), BusError> {
        // Again where a renewal came in between.
        for _ in 0..REVOKE_TRIES {
            match self.lease(key).await? {
                Some((revision, _)) if !self.purge_lease(key, revision).await? => {}
                Some(_) | None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Whether the lease was still at `revision`, and is gone.
    async fn purge_lease(&self, key: &BuildKey, revision: Sequence) -> Result<bool, BusError> {
        let mut headers = HeaderMap::new();
        headers.insert(KV_OPERATION, "PURGE");
        headers.insert(ROLLUP, "sub");
        headers.insert(TTL, format!("{RELEASED_TTL_SECONDS}s").as_str());
        headers.insert(EXPECTED, revision.0.to_string().as_str());
        let subject = LeaseSubject(key.clone()).to_string();
        match self.publish_once(&subject, headers, Bytes::new()).await {
            Err(error) if !crate::transition::is_conflict(&error) => {
                Err(BusError::failed(format!("releasing the lease on {key}"))(error))
            }
            written => Ok(written.is_ok()),
        }
    }

    /// Who holds the lease on `key`, and its revision.
    pub async fn lease(&self, key: &BuildKey) -> Result<Option<(Sequence, LeaseHolder)>, BusError> {
        let last = self.last_stored(stream::LEASES, &LeaseSubject(key.clone()).to_string()).await?;
        Ok(last.and_then(|stored| held(&stored)))
    }

    /// Those of `keys` whose lease is held by someone, with its revision.
    pub async fn leases_held(&self, keys: &[BuildKey]) -> Result<Vec<(BuildKey, Sequence)>, BusError> {
        let subjects: Vec<String> = keys.iter().map(|key| LeaseSubject(key.clone()).to_string()).collect();
        let found = self.last_of_many(stream::LEASES, &subjects).await?;
        let keep = |stored: &Stored| {
            let key = stored.subject.parse::<LeaseSubject>().ok()?.0;
            held(stored).map(|(revision, _)| (key, revision))
        };
        Ok(found.iter().filter_map(keep).collect())
    }
}

fn held(stored: &Stored) -> Option<(Sequence, LeaseHolder)> {
    if LeaseChange::of(stored.headers.as_ref()) != LeaseChange::Held {
        return None;
    }
    let holder = decode(Encoding::Json, &stored.payload).ok()?;
    Some((stored.sequence, holder))
}

fn lease_write(key: &BuildKey, holder: &LeaseHolder, expected: Sequence) -> Write {
    let writer = format!("{:032x}", uuid::Uuid::new_v4().as_u128());
    let mut headers = HeaderMap::new();
    headers.insert(WRITER, writer.as_str());
    headers.insert(EXPECTED, expected.0.to_string().as_str());
    headers.insert(TTL, format!("{}s", holder.ttl_seconds.max(1)).as_str());
    let payload = encode(Encoding::Json, holder);
    Write { stream: stream::LEASES, subject: LeaseSubject(key.clone()).to_string(), writer, headers, payload }
}
