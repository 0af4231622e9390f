//! Limits the connections to a server, and chooses which one is closed when a new one needs its place.

use std::{cmp::Reverse, collections::HashMap, net::IpAddr, time::Duration};

/// Descriptors that a process reserves for everything except connections of clients: the bus, Redis, files.
pub const DESCRIPTORS_RESERVED: u64 = 40;
/// Maximum number of descriptors reserved by default, however many are available.
const DESCRIPTORS_RESERVED_MOST: u64 = 1024;
/// Default maximum number of connections.
const CONNECTIONS_MOST: u64 = 10_000;
/// Milliseconds without a byte after which a connection with an incomplete request may be closed.
const SILENCE_MS: u64 = 250;
/// Minimum rate in bytes per second of a request's body, averaged over the time waited for it.
const BODY_BYTES_PER_SECOND: u64 = 1024;

/// Maximum numbers of simultaneous connections to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum of all clients together.
    pub total: usize,
    /// Maximum from one address.
    pub per_client: usize,
}

/// The limit of open files is too low for the number of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{connections} connections need {needed} file descriptors, but this process may open only {descriptors}; raise the \
     limit (ulimit -n, LimitNOFILE=) or lower the setting connections_max"
)]
pub struct TooFewDescriptors {
    pub descriptors: u64,
    pub needed: u64,
    pub connections: u64,
}

impl ConnectionLimits {
    /// Derives the limits for a process that may open `descriptors` files. For `total` and `per_client`, 0 means the
    /// default: up to 10,000 connections, and half of them from one address.
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

/// Number of descriptors that a process needs to run builds in `workspaces` workspaces and actions in `slots` slots:
/// pipes, files being copied, and a fixed reserve.
pub fn descriptors_to_run(workspaces: u16, slots: u16) -> u64 {
    DESCRIPTORS_RESERVED + 8 * u64::from(workspaces) + 16 * u64::from(slots)
}

/// Present activity of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionState {
    /// The connection has not sent the head of any request.
    Silent,
    /// A request's body is incomplete, and there is no other request.
    Sending,
    /// All requests were answered, and there is no new one.
    Idle,
    /// A complete request is being answered.
    Busy,
}

/// A connection as input of the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection<K> {
    /// Identifies the connection to the caller.
    pub key: K,
    /// Address of the client.
    pub client: IpAddr,
    /// Present activity of the connection.
    pub state: ConnectionState,
    /// Milliseconds since the last byte from the client.
    pub silent_ms: u64,
}

impl<K> Connection<K> {
    /// Whether it can be closed with no or almost no loss.
    fn is_dispensable(&self) -> bool {
        match self.state {
            ConnectionState::Silent | ConnectionState::Idle => true,
            ConnectionState::Sending => self.silent_ms >= SILENCE_MS,
            ConnectionState::Busy => false,
        }
    }
}

/// The decision about a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry<K> {
    /// The limits allow another connection.
    Admit,
    /// The connection is admitted after this one is closed.
    Replace(K),
    /// All existing connections are busy.
    Refuse,
}

/// Decides about a new connection from `client`, next to the existing ones in `there`. If one must be closed, it is one
/// of the client with the most connections; of these, one without any request goes before an idle one, the longest
/// silent first. Busy connections are never closed.
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

/// The connection to close when the process can open no more files, if any can be closed.
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

/// Maximum total time to wait for a request's body of which `received` bytes have arrived. `patience` is the allowance
/// for the first byte and for pauses.
pub fn body_time(patience: Duration, received: u64) -> Duration {
    patience.saturating_add(Duration::from_secs(received / BODY_BYTES_PER_SECOND))
}

#[cfg(test)]
mod tests;
