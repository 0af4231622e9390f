//! Connections to a server: how many there may be, and which one is closed when another needs its room.

use std::{cmp::Reverse, collections::HashMap, net::IpAddr, time::Duration};

/// Descriptors that a process keeps for everything except connections of clients: the bus, Redis, files.
pub const DESCRIPTORS_RESERVED: u64 = 40;
/// It keeps no more than these by itself, however many there are.
const DESCRIPTORS_RESERVED_MOST: u64 = 1024;
/// Without a setting there are no more connections than these.
const CONNECTIONS_MOST: u64 = 10_000;
/// A request of which more is awaited may be given up after so many milliseconds without a byte of it.
const SILENCE_MS: u64 = 250;
/// Bytes a second that a request's body must bring, averaged over the time that it was waited for.
const BODY_BYTES_PER_SECOND: u64 = 1024;

/// How many connections a server takes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Of all clients together.
    pub total: usize,
    /// From one address.
    pub per_client: usize,
}

/// The process may open too few files for its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process may have {descriptors} files open, and {needed} are needed for {connections} connections; raise the \
     limit (ulimit -n, LimitNOFILE=) or lower the setting connections_max"
)]
pub struct TooFewDescriptors {
    /// What it may open.
    pub descriptors: u64,
    /// What it would need.
    pub needed: u64,
    /// The connections that it should take.
    pub connections: u64,
}

impl ConnectionLimits {
    /// The limits of a process that may have `descriptors` files open. 0 is what suits them: up to 10,000 connections, half
    /// of them from one address.
    pub fn new(total: usize, per_client: usize, descriptors: u64) -> Result<Self, TooFewDescriptors> {
        let reserved = (descriptors / 2).clamp(DESCRIPTORS_RESERVED, DESCRIPTORS_RESERVED_MOST);
        let asked = u64::try_from(total).unwrap_or(u64::MAX);
        let connections = match asked {
            0 => descriptors.saturating_sub(reserved).clamp(2, CONNECTIONS_MOST),
            asked => asked,
        };
        let needed = connections.saturating_add(DESCRIPTORS_RESERVED);
        if needed > descriptors {
            return Err(TooFewDescriptors { descriptors, needed, connections });
        }
        let total = usize::try_from(connections).unwrap_or(usize::MAX);
        let per_client = if per_client == 0 { total.div_ceil(2) } else { per_client.min(total) };
        Ok(Self { total, per_client })
    }
}

/// Descriptors that a process needs which runs builds in `workspaces` workspaces and actions in `slots` slots: pipes, files that
/// are copied, and what every process needs.
pub fn descriptors_to_run(workspaces: u16, slots: u16) -> u64 {
    DESCRIPTORS_RESERVED + 8 * u64::from(workspaces) + 16 * u64::from(slots)
}

/// What a connection is used for just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionState {
    /// It has not sent the head of a single request.
    Silent,
    /// More of the body of a request is awaited, and there is no other request.
    Sending,
    /// It has been answered, and asks for nothing.
    Idle,
    /// A complete request is being answered.
    Busy,
}

/// A connection, as the choice sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection<K> {
    /// Which it is.
    pub key: K,
    /// Where it comes from.
    pub client: IpAddr,
    /// What it is used for.
    pub state: ConnectionState,
    /// Milliseconds without a byte from it.
    pub silent_ms: u64,
}

impl<K> Connection<K> {
    /// Whether nothing is lost, or next to nothing, when it is closed.
    fn is_dispensable(&self) -> bool {
        match self.state {
            ConnectionState::Silent | ConnectionState::Idle => true,
            ConnectionState::Sending => self.silent_ms >= SILENCE_MS,
            ConnectionState::Busy => false,
        }
    }
}

/// What becomes of a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry<K> {
    /// There is room.
    Admit,
    /// There is room when this one is closed.
    Replace(K),
    /// All that there are have something to do.
    Refuse,
}

/// What becomes of a new connection from `client`, beside those that there are. One that has never asked for anything
/// goes before one that is idle, of the client that has most, the longest silent first; a busy one never goes.
pub fn enter<K: Copy>(client: IpAddr, limits: ConnectionLimits, there: &[Connection<K>]) -> Entry<K> {
    let own = there.iter().filter(|connection| connection.client == client).count();
    let dispensable = |own_only: bool| {
        let found = if own_only {
            most_dispensable(there.iter().filter(|connection| connection.client == client), there)
        } else {
            most_dispensable(there.iter(), there)
        };
        found.map_or(Entry::Refuse, Entry::Replace)
    };
    if own >= limits.per_client {
        dispensable(true)
    } else if there.len() >= limits.total {
        dispensable(false)
    } else {
        Entry::Admit
    }
}

/// The connection that is closed first when the process can open no more files, if there is one to close.
pub fn to_close<K: Copy>(there: &[Connection<K>]) -> Option<K> {
    most_dispensable(there.iter(), there)
}

fn most_dispensable<'a, K: Copy + 'a>(
    candidates: impl Iterator<Item = &'a Connection<K>>,
    there: &[Connection<K>],
) -> Option<K> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for connection in there {
        *counts.entry(connection.client).or_default() += 1;
    }
    let rank = |connection: &&Connection<K>| {
        let count = counts.get(&connection.client).copied().unwrap_or_default();
        (Reverse(count), connection.state, Reverse(connection.silent_ms))
    };
    candidates.filter(|connection| connection.is_dispensable()).min_by_key(rank).map(|found| found.key)
}

/// How long a request's body may be waited for in all, when `received` bytes of it have come. `patience` is for the
/// first byte and for pauses.
pub fn body_time(patience: Duration, received: u64) -> Duration {
    patience.saturating_add(Duration::from_secs(received / BODY_BYTES_PER_SECOND))
}

#[cfg(test)]
mod tests;
