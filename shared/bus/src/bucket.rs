//! Values in key-value buckets: reading, writing and following them.

use std::{collections::BTreeMap, marker::PhantomData, time::Duration};

use async_nats::{HeaderMap, Subscriber};
use bytes::Bytes;
use futures::StreamExt as _;
use model::Sequence;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{
    Bus, BusError, Message, Stored,
    headers::{KV_OPERATION, header},
    transition::Write,
};

/// A value of one kind, in JSON. The module `entries` lists all kinds with their buckets and keys.
pub trait Entry: Message + Sync {
    /// `()` if the bucket has one value of this kind.
    type Key: Ord + Send + Sync;

    /// The stream of the bucket.
    const STREAM: &str;

    /// Whether an unreadable value is an error; otherwise it counts as absent, with a warning.
    const MUST_BE_READABLE: bool = false;

    /// The subject of a key.
    fn subject(key: &Self::Key) -> String;
}

/// A value of a kind of which the bucket has many.
pub trait ListedEntry: Entry {
    /// Matches the subjects of all keys, and possibly of other values.
    const ALL: &str;

    /// Parses the key from its subject; `None` if the subject belongs to another kind.
    fn key(subject: &str) -> Option<Self::Key>;
}

/// A change in a bucket whose messages the server repeats on plain subjects.
pub trait EntryChange: Sized {
    /// The plain subjects of all changes.
    const LIVE: &str;

    /// Parses a message of the bucket; `None` if it cannot be read.
    fn of(stored: &Stored) -> Option<Self>;
}

/// Changes as they are stored. A lost connection may lose some: read the values again after a reconnection.
#[derive(Debug)]
pub struct EntryChanges<C> {
    messages: Subscriber,
    kind: PhantomData<fn() -> C>,
}

impl<C: EntryChange> EntryChanges<C> {
    /// The next change; `None` after the connection was closed. A change that cannot be read is skipped. The call may
    /// be dropped and repeated without losing a change.
    pub async fn next(&mut self) -> Option<C> {
        loop {
            // A message that the server did not republish comes from another publisher.
            let Some((stored, _)) = Stored::from_live(self.messages.next().await?) else { continue };
            if let Some(change) = C::of(&stored) {
                return Some(change);
            }
        }
    }
}

/// Number of values read at a time.
const PAGE: usize = 500;

/// Pause between two attempts to read a value.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The values in key-value buckets.
#[derive(Debug, Clone, Copy)]
pub struct Buckets<'a> {
    pub(crate) bus: &'a Bus,
}

impl Bus {
    /// The values in key-value buckets.
    pub fn buckets(&self) -> Buckets<'_> {
        Buckets { bus: self }
    }
}

impl Buckets<'_> {
    /// The value of `key` and its position, from the stream's leader: position 0 if there was never one, and
    /// `(position, None)` if it was deleted or cannot be read, so that a new value can replace it.
    pub async fn get<E: Entry>(self, key: &E::Key) -> Result<(Sequence, Option<E>), BusError> {
        match self.bus.stream(E::STREAM).last(&E::subject(key)).await? {
            Some(stored) => Ok((stored.sequence, read_value(&stored)?)),
            None => Ok((Sequence(0), None)),
        }
    }

    /// Like [`Self::get`], for the start of a service: asks again for at most `patience`, since a nats-server that just
    /// restarted may leave requests without an answer.
    pub async fn get_patiently<E: Entry>(
        self,
        key: &E::Key,
        patience: Duration,
    ) -> Result<(Sequence, Option<E>), BusError> {
        let end = Instant::now() + patience;
        loop {
            match self.get(key).await {
                Err(BusError::Failed { what, source }) if Instant::now() < end => {
                    warn!(error = &*source as &dyn std::error::Error, "{what} failed, asking again");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                result => return result,
            }
        }
    }

    /// All values of a kind by key, from any replica, without those that cannot be read.
    pub async fn all<E: ListedEntry>(self) -> Result<BTreeMap<E::Key, E>, BusError> {
        let mut found = BTreeMap::new();
        let mut from = Sequence(1);
        loop {
            let page = self.bus.stream(E::STREAM).read_from(E::ALL, from, PAGE).await?;
            for stored in &page.events {
                let Some(key) = E::key(&stored.subject) else { continue };
                // A value that was written during the read may be read twice; the later one applies.
                match read_value::<E>(stored)? {
                    Some(value) => found.insert(key, value),
                    None => found.remove(&key),
                };
            }
            match page.events.last() {
                Some(last) if page.more => from = Sequence(last.sequence.0 + 1),
                Some(_) | None => return Ok(found),
            }
        }
    }

    /// Writes a value, or deletes it if `value` is `None`, regardless of the previous one.
    pub async fn put<E: Entry>(self, key: &E::Key, value: Option<&E>) -> Result<(), BusError> {
        let subject = E::subject(key);
        let mut headers = HeaderMap::new();
        let payload = if let Some(value) = value {
            value.to_json()
        } else {
            headers.insert(KV_OPERATION, "DEL");
            Bytes::new()
        };
        let written = self.bus.publish_once(&subject, headers, payload).await;
        written.map(drop).map_err(BusError::failed(format!("setting {subject}")))
    }

    /// Writes a value if the previous one is still at `expected`; returns whether it was written. An uncertain answer
    /// is resolved by reading back, for at most `patience`.
    pub async fn compare_and_set<E: Entry>(
        self,
        key: &E::Key,
        value: &E,
        expected: Sequence,
        patience: Duration,
    ) -> Result<bool, BusError> {
        let write = Write::new(E::STREAM, E::subject(key), expected, value.to_json());
        Ok(self.bus.compare_and_set(&write, patience).await?.is_ok())
    }

    /// Whether the user may write this entry.
    pub async fn may_write<E: Entry>(self, key: &E::Key) -> bool {
        self.bus.may_publish(&E::subject(key)).await
    }

    /// Subscribes to changes from now on.
    pub async fn changes<C: EntryChange>(self) -> Result<EntryChanges<C>, BusError> {
        let subscribed = self.bus.client.subscribe(C::LIVE).await;
        let messages = subscribed.map_err(BusError::failed(format!("subscribing to {}", C::LIVE)))?;
        Ok(EntryChanges { messages, kind: PhantomData })
    }
}

/// The value in a message of a bucket; `None` if the message marks a deleted key.
fn read_value<E: Entry>(stored: &Stored) -> Result<Option<E>, BusError> {
    // A value that must be readable was not deleted by Forebay.
    if header(stored.headers.as_ref(), KV_OPERATION).is_some() && !E::MUST_BE_READABLE {
        return Ok(None);
    }
    match stored.read() {
        Ok(value) => Ok(Some(value)),
        Err(error) if E::MUST_BE_READABLE => Err(error),
        Err(error) => {
            debug!(error = telemetry::error_chain(&error), "ignoring an unreadable value");
            Ok(None)
        }
    }
}
