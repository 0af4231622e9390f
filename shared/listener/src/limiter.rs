//! Limits the number of client connections of a process.

use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    task::{Context, Waker},
    time::{Duration, Instant},
};

use futures::task::AtomicWaker;
use invariant::impossible;
use parking_lot::Mutex;
use policy::connections::{Connection, ConnectionLimits, ConnectionState, Entry, enter, to_close};
use telemetry::metrics::{Counter, Gauge, Label, add, count};
use tokio::sync::Notify;

/// Minimum interval between two log lines about refused connections.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Timeouts for clients that are slow or idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Time for the head of a request, the first one or the next one of the same connection; for HTTP/2 the time
    /// for its first bytes.
    pub head: Duration,
    /// Maximum pause in the body of a request.
    pub body: Duration,
    /// Maximum time for which a client reads nothing of its answer.
    pub reading: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let half_a_minute = Duration::from_secs(30);
        Self { head: half_a_minute, body: half_a_minute, reading: half_a_minute }
    }
}

/// Limits all connections of a process's listeners, which share its descriptors. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Limiter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limits: ConnectionLimits,
    patience: Patience,
    began: Instant,
    table: Mutex<Table>,
    /// Notified when a connection has ended.
    freed: Notify,
    /// Time of the last log line about refused connections, in milliseconds since the limiter was created; 0: never.
    warned_at_ms: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    connections: HashMap<u64, Arc<Usage>>,
    clients: HashMap<IpAddr, usize>,
    next: u64,
}

/// State of a connection, updated by its requests.
#[derive(Debug)]
pub struct Usage {
    key: u64,
    client: IpAddr,
    began: Instant,
    /// Time when the last byte arrived, in milliseconds since the limiter was created.
    last_byte_ms: AtomicU64,
    /// Whether at least one request arrived.
    served: AtomicBool,
    /// Number of requests whose answer is not complete.
    open: AtomicU32,
    /// Number of open requests from which more bytes are currently awaited.
    awaited: AtomicU32,
    /// Whether the connection must end.
    closed: AtomicBool,
    waker: AtomicWaker,
    /// Names in the verified certificate of the client, once it is known.
    certificate_names: OnceLock<Vec<String>>,
    /// What is kept as long as the connection is open, by its key.
    kept: Mutex<Vec<(usize, Box<dyn fmt::Debug + Send + Sync>)>>,
}

impl Usage {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The address of the client.
    pub fn client(&self) -> IpAddr {
        self.client
    }

    /// Names in the verified certificate of the client; empty if it has none.
    pub fn certificate_names(&self) -> &[String] {
        self.certificate_names.get().map_or(&[], Vec::as_slice)
    }

    /// Records the names in the certificate of the client, once.
    pub(crate) fn set_certificate_names(&self, names: Vec<String>) {
        // A connection has one handshake.
        let _ = self.certificate_names.set(names);
    }

    /// Keeps a value until the connection ends, unless there is one for `key`.
    ///
    /// # Errors
    ///
    /// Fails if the value cannot be made.
    pub fn keep_once<T: fmt::Debug + Send + Sync + 'static, E>(
        &self,
        key: usize,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<(), E> {
        let mut kept = self.kept.lock();
        if kept.iter().all(|(known, _)| *known != key) {
            kept.push((key, Box::new(make()?)));
        }
        Ok(())
    }

    /// Records that bytes arrived.
    pub(crate) fn record_bytes(&self) {
        self.last_byte_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// Records that a request has begun.
    pub(crate) fn begin(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.served.store(true, Ordering::Relaxed);
    }

    /// Records that more bytes of a request are awaited.
    pub(crate) fn begin_wait(&self) {
        self.awaited.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that these bytes arrived or are no longer awaited.
    pub(crate) fn end_wait(&self) {
        self.awaited.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that the answer to a request is complete, or that its client has disconnected.
    pub(crate) fn end(&self) {
        self.record_bytes();
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the connection must end; wakes the task when it must.
    pub(crate) fn is_closed(&self, cx: &Context<'_>) -> bool {
        self.waker.register(cx.waker());
        self.closed.load(Ordering::Acquire)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.waker.take().iter().for_each(Waker::wake_by_ref);
    }

    fn view(&self) -> Connection<u64> {
        let (open, awaited) = (self.open.load(Ordering::Relaxed), self.awaited.load(Ordering::Relaxed));
        let state = match (open, open > awaited) {
            (_, true) => ConnectionState::Busy,
            (1.., false) => ConnectionState::Sending,
            (0, false) if self.served.load(Ordering::Relaxed) => ConnectionState::Idle,
            (0, false) => ConnectionState::Silent,
        };
        let silent_ms = self.now_ms().saturating_sub(self.last_byte_ms.load(Ordering::Relaxed));
        Connection { key: self.key, client: self.client, state, silent_ms }
    }
}

/// Registration of a connection, which removes its usage when the connection ends.
#[derive(Debug)]
pub(crate) struct Registration {
    usage: Arc<Usage>,
    limiter: Limiter,
}

impl Registration {
    pub(crate) fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.limiter.unregister(&self.usage);
    }
}

impl Default for Limiter {
    /// Allows a thousand connections, also from one address.
    fn default() -> Self {
        Self::new(ConnectionLimits { total: 1000, per_client: 1000 }, Patience::default())
    }
}

impl Limiter {
    /// Creates a limiter without connections.
    pub fn new(limits: ConnectionLimits, patience: Patience) -> Self {
        Self(Arc::new(Inner {
            limits,
            patience,
            began: Instant::now(),
            table: Mutex::default(),
            freed: Notify::new(),
            warned_at_ms: AtomicU64::new(0),
        }))
    }

    pub fn patience(&self) -> Patience {
        self.0.patience
    }

    /// Registers a new connection, if the limits allow it.
    pub(crate) async fn enter(&self, client: IpAddr) -> Option<Registration> {
        let (registration, replaced) = self.register(client)?;
        if replaced {
            count(Counter::ConnectionsClosed, &[(Label::Reason, "for_another")], 1);
            self.warn_at_intervals("connection limit reached: closing an idle connection for each new one");
            self.wait_for_end().await;
        }
        Some(registration)
    }

    fn register(&self, client: IpAddr) -> Option<(Registration, bool)> {
        let mut table = self.0.table.lock();
        let own = table.clients.get(&client).copied().unwrap_or_default();
        let has_room = own < self.0.limits.per_client && table.connections.len() < self.0.limits.total;
        let entry = if has_room { Entry::Admit } else { enter(client, self.0.limits, &table.views()) };
        match entry {
            Entry::Admit => {}
            Entry::Replace(key) => table.close(key),
            Entry::Refuse => {
                drop(table);
                count(Counter::ConnectionsClosed, &[(Label::Reason, "refused")], 1);
                self.warn_at_intervals(
                    "connection limit reached and all connections are busy: refusing new ones (settings \
                     connections_max, connections_per_client_max)",
                );
                return None;
            }
        }
        let usage = Arc::new(Usage {
            key: table.next,
            client,
            began: self.0.began,
            last_byte_ms: AtomicU64::new(0),
            served: AtomicBool::new(false),
            open: AtomicU32::new(0),
            awaited: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            certificate_names: OnceLock::new(),
            kept: Mutex::default(),
        });
        usage.record_bytes();
        table.next += 1;
        table.connections.insert(usage.key, Arc::clone(&usage));
        *table.clients.entry(client).or_default() += 1;
        add(Gauge::Connections, &[], 1);
        Some((Registration { usage, limiter: self.clone() }, matches!(entry, Entry::Replace(_))))
    }

    /// Closes an idle connection, because the process can open no more files, and waits briefly for it to end.
    pub(crate) async fn make_room(&self) {
        let closed = {
            let mut table = self.0.table.lock();
            let found = to_close(&table.views());
            found.inspect(|key| table.close(*key)).is_some()
        };
        self.warn_at_intervals(
            "this process has reached its limit of open files: raise it (ulimit -n, LimitNOFILE=)",
        );
        if closed {
            count(Counter::ConnectionsClosed, &[(Label::Reason, "no_descriptors")], 1);
        }
        self.wait_for_end().await;
    }

    /// Waits briefly until a connection has ended.
    async fn wait_for_end(&self) {
        // After the timeout, the caller continues without a free place.
        let _ = tokio::time::timeout(Duration::from_millis(100), self.0.freed.notified()).await;
    }

    fn unregister(&self, usage: &Usage) {
        let mut table = self.0.table.lock();
        if table.connections.remove(&usage.key).is_none() {
            impossible!("connection {} ended twice", usage.key);
            return;
        }
        if let Some(own) = table.clients.get_mut(&usage.client) {
            *own -= 1;
            if *own == 0 {
                table.clients.remove(&usage.client);
            }
        } else {
            impossible!("client {} has a connection but no count", usage.client);
        }
        drop(table);
        add(Gauge::Connections, &[], -1);
        self.0.freed.notify_one();
    }

    fn warn_at_intervals(&self, what: &str) {
        let now = u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let warned = self.0.warned_at_ms.load(Ordering::Relaxed);
        if warned == 0 || u128::from(now.saturating_sub(warned)) >= WARN_INTERVAL.as_millis() {
            self.0.warned_at_ms.store(now, Ordering::Relaxed);
            let connections = self.0.table.lock().connections.len();
            tracing::warn!(connections, limits = ?self.0.limits, "{what}");
        }
    }
}

impl Table {
    /// Connections that are not closed already.
    fn views(&self) -> Vec<Connection<u64>> {
        let open = self.connections.values().filter(|usage| !usage.closed.load(Ordering::Relaxed));
        open.map(|usage| usage.view()).collect()
    }

    fn close(&mut self, key: u64) {
        if let Some(usage) = self.connections.get(&key) {
            usage.close();
        } else {
            impossible!("connection {key} is to be closed but is not registered");
        }
    }
}
