//! Leases: who owns a build, and which executors live, with a time to live and a fencing number (DESIGN §3).
//!
//! Written by raw publishes: the client library's key-value calls drop the time to live over a
//! marker, which would make a lease immortal.

use std::{fmt::Display, time::Duration};

use async_nats::HeaderMap;
use bytes::Bytes;
use model::{BuildKey, ExecutorHeartbeat, ExecutorId, Millis, Sequence, WorkerId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    Bus, BusError, Encoding, ExecutorLeaseSubject, LeaseSubject, Stored, decode, encode,
    headers::{EXPECTED, KV_OPERATION, MARKER_REASON, ROLLUP, TTL, header},
    stream,
    transition::Write,
};

/// What a lease can be held on.
pub trait LeaseName: Clone + Display + Eq + std::fmt::Debug + Send + Sync {
    /// What a lease says of its holder.
    type Holder: Clone + std::fmt::Debug + Eq + Serialize + DeserializeOwned + Send + Sync;

    /// The stream of the bucket.
    const STREAM: &str;

    /// The subjects of all leases there.
    const ALL: &str;

    /// The lease's subject there.
    fn subject(&self) -> String;

    /// On what the lease with this subject is.
    fn of_subject(subject: &str) -> Option<Self>;

    /// Seconds that the holder's lease lives without renewal.
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

/// An executor's lease covers all that it runs.
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
    /// On what.
    pub key: K,
    /// By whom.
    pub holder: K::Holder,
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
pub enum Acquired<K: LeaseName = BuildKey> {
    /// It is ours.
    Held(Lease<K>),
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

/// What stands in the bucket under the name of a lease.
enum Standing<H> {
    /// A lease that is held.
    Held(Sequence, H),
    /// A lease that should have expired: nats-server 2.15 forgets times to live when it is killed and rebuilds a stream.
    Stale(Sequence),
    /// Nothing, or the trace of a lease that ended.
    Free,
}

impl<H> Standing<H> {
    fn held(self) -> Option<(Sequence, H)> {
        match self {
            Self::Held(revision, holder) => Some((revision, holder)),
            Self::Stale(_) | Self::Free => None,
        }
    }
}

/// How much later than a lease's end it counts as ended where the server has not said so: the server takes a moment to say it.
const STALE_MARGIN: Duration = Duration::from_secs(1);
/// Leases read at a time.
const PAGE: usize = 500;
const REVOKE_TRIES: u32 = 3;
/// How long the trace of a released lease stays.
const RELEASED_TTL_SECONDS: u64 = 1;

impl Bus {
    /// Takes the lease on `key` if it is free, or its holder let it run out unnoticed.
    pub async fn acquire_lease<K: LeaseName>(
        &self,
        key: &K,
        holder: K::Holder,
        patience: Duration,
    ) -> Result<Acquired<K>, BusError> {
        let mut expected = Sequence(0);
        // A second round where an old marker stands, a third where it went meanwhile.
        for _ in 0..3 {
            let write = lease_write(key, &holder, expected);
            match self.compare_and_set(&write, patience).await? {
                Ok(revision) => return Ok(Acquired::Held(Lease { key: key.clone(), holder, revision })),
                Err(None) => expected = Sequence(0),
                Err(Some(last)) => match self.standing::<K>(&last) {
                    Standing::Held(..) => return Ok(Acquired::Taken),
                    Standing::Stale(_) | Standing::Free => expected = last.sequence,
                },
            }
        }
        Ok(Acquired::Taken)
    }

    /// Renews `lease`, if it is still ours.
    pub async fn renew_lease<K: LeaseName>(
        &self,
        lease: &mut Lease<K>,
        patience: Duration,
    ) -> Result<Renewed, BusError> {
        let write = lease_write(&lease.key, &lease.holder, lease.revision);
        match self.compare_and_set(&write, patience).await? {
            Ok(revision) => {
                lease.revision = revision;
                Ok(Renewed::Held)
            }
            Err(_) => Ok(Renewed::Lost),
        }
    }

    /// Releases `lease`, if it is still ours; a lost answer does no harm, it expires.
    pub async fn release_lease<K: LeaseName>(&self, lease: &Lease<K>) -> Result<(), BusError> {
        self.purge_lease(&lease.key, lease.revision).await.map(drop)
    }

    /// Ends the lease on `key`, whoever holds it: for those who ended its build.
    pub async fn revoke_lease<K: LeaseName>(&self, key: &K) -> Result<(), BusError> {
        // Again where a renewal came in between.
        for _ in 0..REVOKE_TRIES {
            match self.standing_on(key).await? {
                Standing::Held(revision, _) | Standing::Stale(revision)
                    if !self.purge_lease(key, revision).await? => {}
                Standing::Held(..) | Standing::Stale(_) | Standing::Free => return Ok(()),
            }
        }
        Ok(())
    }

    /// Whether the lease was still at `revision`, and is gone.
    async fn purge_lease<K: LeaseName>(&self, key: &K, revision: Sequence) -> Result<bool, BusError> {
        let mut headers = HeaderMap::new();
        headers.insert(KV_OPERATION, "PURGE");
        headers.insert(ROLLUP, "sub");
        headers.insert(TTL, format!("{RELEASED_TTL_SECONDS}s").as_str());
        headers.insert(EXPECTED, revision.0.to_string().as_str());
        match self.publish_once(&key.subject(), headers, Bytes::new()).await {
            Err(error) if !crate::transition::is_conflict(&error) => {
                Err(BusError::failed(format!("releasing the lease on {key}"))(error))
            }
            written => Ok(written.is_ok()),
        }
    }

    /// Who holds the lease on `key`, and its revision.
    pub async fn lease<K: LeaseName>(&self, key: &K) -> Result<Option<(Sequence, K::Holder)>, BusError> {
        Ok(self.standing_on(key).await?.held())
    }

    /// Whether no process holds the lease on `key`. One that ran out unnoticed is purged first: its holder cannot renew it then.
    pub async fn lease_is_gone<K: LeaseName>(&self, key: &K) -> Result<bool, BusError> {
        match self.standing_on(key).await? {
            Standing::Held(..) => Ok(false),
            Standing::Stale(revision) => self.purge_lease(key, revision).await,
            Standing::Free => Ok(true),
        }
    }

    /// Purges the leases that ran out unnoticed, and returns on what they were. Reads the whole bucket.
    pub async fn purge_stale_leases<K: LeaseName>(&self) -> Result<Vec<K>, BusError> {
        let mut purged = Vec::new();
        let mut from = Sequence(1);
        loop {
            let page = self.stored_from(K::STREAM, K::ALL, from, PAGE).await?;
            for stored in &page.events {
                if let Standing::Stale(revision) = self.standing::<K>(stored)
                    && let Some(key) = K::of_subject(&stored.subject)
                    && self.purge_lease(&key, revision).await?
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

    /// Those of `keys` whose lease is held by someone, with its revision.
    pub async fn leases_held(&self, keys: &[BuildKey]) -> Result<Vec<(BuildKey, Sequence)>, BusError> {
        let subjects: Vec<String> = keys.iter().map(BuildKey::subject).collect();
        let found = self.last_of_many(stream::LEASES, &subjects).await?;
        let keep = |stored: &Stored| {
            let key = BuildKey::of_subject(&stored.subject)?;
            self.standing::<BuildKey>(stored).held().map(|(revision, _)| (key, revision))
        };
        Ok(found.iter().filter_map(keep).collect())
    }

    /// The executors that hold their lease, as they were when they last renewed it; from any replica.
    pub async fn executors(&self) -> Result<Vec<ExecutorHeartbeat>, BusError> {
        let found = self.last_of_many(stream::EXECUTORS, &[ExecutorLeaseSubject::ALL.to_owned()]).await?;
        let live = found.iter().filter_map(|stored| self.standing::<ExecutorId>(stored).held());
        Ok(live.map(|(_, heartbeat)| heartbeat).collect())
    }

    async fn standing_on<K: LeaseName>(&self, key: &K) -> Result<Standing<K::Holder>, BusError> {
        let last = self.last_stored(K::STREAM, &key.subject()).await?;
        Ok(last.map_or(Standing::Free, |stored| self.standing::<K>(&stored)))
    }

    /// What `stored` says, by its age: its time and the farm's now are of the same clock.
    fn standing<K: LeaseName>(&self, stored: &Stored) -> Standing<K::Holder> {
        if LeaseChange::of(stored.headers.as_ref()) != LeaseChange::Held {
            return Standing::Free;
        }
        let Ok(holder) = decode::<K::Holder>(Encoding::Json, &stored.payload) else { return Standing::Free };
        let life = Duration::from_secs(K::ttl_seconds(&holder).max(1));
        if self.clock.at_least().is_some_and(|now| has_ended(stored.at, life, now)) {
            return Standing::Stale(stored.sequence);
        }
        Standing::Held(stored.sequence, holder)
    }
}

/// Whether a lease that was renewed `at` and lives for `life` has ended, beyond doubt.
fn has_ended(at: Millis, life: Duration, now: Millis) -> bool {
    now > at.after(life + STALE_MARGIN)
}

fn lease_write<K: LeaseName>(key: &K, holder: &K::Holder, expected: Sequence) -> Write {
    let payload = encode(Encoding::Json, holder);
    let mut write = Write::new(K::STREAM, key.subject(), expected, payload);
    write.headers.insert(TTL, format!("{}s", K::ttl_seconds(holder).max(1)).as_str());
    write
}
