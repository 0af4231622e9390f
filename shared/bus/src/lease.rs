//! Leases: ownership of a build and liveness of an executor, with a time to live and a fencing number.
//!
//! Leases are written by raw publishes: the client library's key-value calls drop the time to live when a marker
//! exists, which would make a lease immortal.

use std::{fmt::Display, time::Duration};

use async_nats::HeaderMap;
use bytes::Bytes;
use model::{BuildKey, ExecutorHeartbeat, ExecutorId, Millis, Sequence, WorkerId};
use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::{
    Bus, BusError, ExecutorLeaseSubject, FromJson as _, LeaseSubject, Message, Stored,
    headers::{EXPECTED, KV_OPERATION, MARKER_REASON, ROLLUP, TTL, header},
    message, stream,
    transition::Write,
};

/// Resource that a lease can be held on.
pub trait LeaseName: Clone + Display + Eq + std::fmt::Debug + Send + Sync {
    /// Content of a lease: its holder.
    type Holder: Message + Clone + std::fmt::Debug + Eq + Sync;

    /// The stream of the bucket.
    const STREAM: &str;

    /// Matches the subjects of all leases in the bucket.
    const ALL: &str;

    /// The lease's subject in the bucket.
    fn subject(&self) -> String;

    /// Parses the name from the subject of a lease.
    fn of_subject(subject: &str) -> Option<Self>;

    /// Time to live of the holder's lease without renewal, in seconds.
    fn ttl_seconds(holder: &Self::Holder) -> u64;
}

impl LeaseName for BuildKey {
    type Holder = LeaseHolder;
    const STREAM: &str = stream::LEASES;
    const ALL: &str = LeaseSubject::ALL;

    fn subject(&self) -> String {
        LeaseSubject(self.clone()).to_string()
    }

    fn of_subject(subject: &str) -> Option<Self> {
        subject.parse().ok().map(|LeaseSubject(key)| key)
    }

    fn ttl_seconds(holder: &LeaseHolder) -> u64 {
        holder.ttl_seconds
    }
}

/// An executor's lease covers all executions that it runs.
impl LeaseName for ExecutorId {
    type Holder = ExecutorHeartbeat;
    const STREAM: &str = stream::EXECUTORS;
    const ALL: &str = ExecutorLeaseSubject::ALL;

    fn subject(&self) -> String {
        ExecutorLeaseSubject(self.clone()).to_string()
    }

    fn of_subject(subject: &str) -> Option<Self> {
        subject.parse().ok().map(|ExecutorLeaseSubject(executor)| executor)
    }

    fn ttl_seconds(holder: &ExecutorHeartbeat) -> u64 {
        holder.ttl_ms.div_ceil(1000)
    }
}

/// A lease that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease<K: LeaseName = BuildKey> {
    pub key: K,
    pub holder: K::Holder,
    /// Revision of the lease: the position of its last renewal.
    pub revision: Sequence,
}

message!(LeaseHolder);

/// Content of a build's lease: its holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHolder {
    pub worker: WorkerId,
    /// Time to live without renewal, in seconds.
    pub ttl_seconds: u64,
    /// Time when the worker last stored a part of the outputs; absent until the command has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_at_ms: Option<Millis>,
}

/// Outcome of an attempt to acquire a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired<K: LeaseName = BuildKey> {
    /// The caller now holds the lease.
    Held(Lease<K>),
    /// Another holder has the lease.
    Taken,
}

/// Outcome of an attempt to renew a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// The caller still holds the lease.
    Held,
    /// The lease expired, was released, or passed to another holder.
    Lost,
}

/// Meaning of a message of the lease bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseChange {
    /// The lease was acquired or renewed.
    Held,
    /// The lease was released.
    Released,
    /// The time to live of the lease has passed.
    Expired,
}

impl LeaseChange {
    /// Classifies a message of the lease bucket by its headers.
    pub fn of(headers: Option<&HeaderMap>) -> Self {
        match (header(headers, MARKER_REASON), header(headers, KV_OPERATION)) {
            (Some("MaxAge"), _) => Self::Expired,
            (Some(_), _) | (None, Some("PURGE" | "DEL")) => Self::Released,
            (None, _) => Self::Held,
        }
    }
}

/// State of the bucket's entry for a lease.
enum LeaseState<H> {
    /// A lease that is held.
    Held(Sequence, H),
    /// A lease that should have expired: nats-server 2.15 loses times to live when it is killed and rebuilds a stream.
    Stale(Sequence),
    /// No entry, or the marker of a lease that has ended.
    Free,
}

impl<H> LeaseState<H> {
    fn held(self) -> Option<(Sequence, H)> {
        match self {
            Self::Held(revision, holder) => Some((revision, holder)),
            Self::Stale(_) | Self::Free => None,
        }
    }
}

/// Time after its expiry at which a lease counts as expired without a marker: the server writes the
/// marker with a delay.
const STALE_MARGIN: Duration = Duration::from_secs(1);
/// Number of leases read at a time.
const PAGE: usize = 500;
const REVOKE_TRIES: u32 = 3;
/// Time to live of the marker of a released lease, in seconds.
const RELEASED_TTL_SECONDS: u64 = 1;

/// The leases on builds, and those of executors.
#[derive(Debug, Clone, Copy)]
pub struct Leases<'a> {
    bus: &'a Bus,
}

impl Bus {
    /// The leases on builds, and those of executors.
    pub fn leases(&self) -> Leases<'_> {
        Leases { bus: self }
    }
}

impl Leases<'_> {
    /// Acquires the lease on `key` if it is free, or has expired unnoticed by the server.
    pub async fn acquire<K: LeaseName>(
        self,
        key: &K,
        holder: K::Holder,
        patience: Duration,
    ) -> Result<Acquired<K>, BusError> {
        let mut expected = Sequence(0);
        // The second round replaces an old marker, the third covers a marker that vanished in between.
        for _ in 0..3 {
            let write = lease_write(key, &holder, expected);
            match self.bus.compare_and_set(&write, patience).await? {
                Ok(revision) => return Ok(Acquired::Held(Lease { key: key.clone(), holder, revision })),
                Err(None) => expected = Sequence(0),
                Err(Some(last)) => match self.state_of::<K>(&last) {
                    LeaseState::Held(..) => return Ok(Acquired::Taken),
                    LeaseState::Stale(_) | LeaseState::Free => expected = last.sequence,
                },
            }
        }
        Ok(Acquired::Taken)
    }

    /// Renews `lease` if the caller still holds it.
    pub async fn renew<K: LeaseName>(
        self,
        lease: &mut Lease<K>,
        patience: Duration,
    ) -> Result<Renewed, BusError> {
        let write = lease_write(&lease.key, &lease.holder, lease.revision);
        match self.bus.compare_and_set(&write, patience).await? {
            Ok(revision) => {
                lease.revision = revision;
                Ok(Renewed::Held)
            }
            Err(_) => Ok(Renewed::Lost),
        }
    }

    /// Releases `lease` if the caller still holds it; a lost answer does no harm, the lease expires.
    pub async fn release<K: LeaseName>(self, lease: &Lease<K>) -> Result<(), BusError> {
        self.purge(&lease.key, lease.revision).await.map(drop)
    }

    /// Ends the lease on `key` whatever its holder: for callers that have ended its build.
    pub async fn revoke<K: LeaseName>(self, key: &K) -> Result<(), BusError> {
        // Retry if a renewal came in between.
        for _ in 0..REVOKE_TRIES {
            match self.read_state(key).await? {
                LeaseState::Held(revision, _) | LeaseState::Stale(revision)
                    if !self.purge(key, revision).await? => {}
                LeaseState::Held(..) | LeaseState::Stale(_) | LeaseState::Free => return Ok(()),
            }
        }
        Ok(())
    }

    /// Purges the lease if it is still at `revision`; returns whether it did.
    async fn purge<K: LeaseName>(self, key: &K, revision: Sequence) -> Result<bool, BusError> {
        let mut headers = HeaderMap::new();
        headers.insert(KV_OPERATION, "PURGE");
        headers.insert(ROLLUP, "sub");
        headers.insert(TTL, format!("{RELEASED_TTL_SECONDS}s").as_str());
        headers.insert(EXPECTED, revision.0.to_string().as_str());
        match self.bus.publish_once(&key.subject(), headers, Bytes::new()).await {
            Err(error) if !crate::transition::is_conflict(&error) => {
                Err(BusError::failed(format!("releasing the lease on {key}"))(error))
            }
            written => Ok(written.is_ok()),
        }
    }

    /// The holder of the lease on `key`, and the lease's revision.
    pub async fn get<K: LeaseName>(self, key: &K) -> Result<Option<(Sequence, K::Holder)>, BusError> {
        Ok(self.read_state(key).await?.held())
    }

    /// Whether the lease on `key` has no holder. An expired lease without a marker is purged first: its holder
    /// cannot renew it then.
    pub async fn is_gone<K: LeaseName>(self, key: &K) -> Result<bool, BusError> {
        match self.read_state(key).await? {
            LeaseState::Held(..) => Ok(false),
            LeaseState::Stale(revision) => self.purge(key, revision).await,
            LeaseState::Free => Ok(true),
        }
    }

    /// Purges leases that expired without a marker and returns their names. Reads the whole bucket.
    pub async fn purge_stale<K: LeaseName>(self) -> Result<Vec<K>, BusError> {
        let mut purged = Vec::new();
        let mut from = Sequence(1);
        loop {
            let page = self.bus.stream(K::STREAM).read_from(K::ALL, from, PAGE).await?;
            for stored in &page.events {
                if let LeaseState::Stale(revision) = self.state_of::<K>(stored)
                    && let Some(key) = K::of_subject(&stored.subject)
                    && self.purge(&key, revision).await?
                {
                    purged.push(key);
                }
            }
            match page.events.last() {
                Some(last) if page.more => from = Sequence(last.sequence.0 + 1),
                Some(_) | None => return Ok(purged),
            }
        }
    }

    /// Those of `keys` whose lease is held, each with the lease's revision.
    pub async fn held(self, keys: &[BuildKey]) -> Result<Vec<(BuildKey, Sequence)>, BusError> {
        let subjects: Vec<String> = keys.iter().map(BuildKey::subject).collect();
        let found = self.bus.stream(stream::LEASES).last_of_many(&subjects).await?;
        let held_lease = |stored: &Stored| {
            let key = BuildKey::of_subject(&stored.subject)?;
            self.state_of::<BuildKey>(stored).held().map(|(revision, _)| (key, revision))
        };
        Ok(found.iter().filter_map(held_lease).collect())
    }

    /// The executors that hold their lease, as of their last renewal; from any replica.
    pub async fn executors(self) -> Result<Vec<ExecutorHeartbeat>, BusError> {
        let found =
            self.bus.stream(stream::EXECUTORS).last_of_many(&[ExecutorLeaseSubject::ALL.to_owned()]).await?;
        let live = found.iter().filter_map(|stored| self.state_of::<ExecutorId>(stored).held());
        Ok(live.map(|(_, heartbeat)| heartbeat).collect())
    }

    async fn read_state<K: LeaseName>(self, key: &K) -> Result<LeaseState<K::Holder>, BusError> {
        let last = self.bus.stream(K::STREAM).last(&key.subject()).await?;
        Ok(last.map_or(LeaseState::Free, |stored| self.state_of::<K>(&stored)))
    }

    /// Classifies an entry by its age: its timestamp and the farm's current time are of the same clock.
    fn state_of<K: LeaseName>(self, stored: &Stored) -> LeaseState<K::Holder> {
        if LeaseChange::of(stored.headers.as_ref()) != LeaseChange::Held {
            return LeaseState::Free;
        }
        let holder = match K::Holder::from_json(&stored.payload) {
            Ok(holder) => holder,
            Err(error) => {
                let error = telemetry::error_chain(&error);
                debug!(subject = stored.subject, error, "cannot read a lease: it counts as free");
                return LeaseState::Free;
            }
        };
        let life = Duration::from_secs(K::ttl_seconds(&holder).max(1));
        if self.bus.clock.at_least().is_some_and(|now| has_ended(stored.at, life, now)) {
            return LeaseState::Stale(stored.sequence);
        }
        LeaseState::Held(stored.sequence, holder)
    }
}

/// Whether a lease renewed `at` with time to live `life` has certainly expired.
fn has_ended(at: Millis, life: Duration, now: Millis) -> bool {
    now > at.after(life + STALE_MARGIN)
}

fn lease_write<K: LeaseName>(key: &K, holder: &K::Holder, expected: Sequence) -> Write {
    let payload = holder.to_json();
    let mut write = Write::new(K::STREAM, key.subject(), expected, payload);
    write.headers.insert(TTL, format!("{}s", K::ttl_seconds(holder).max(1)).as_str());
    write
}
