//! Connecting to NATS, and noticing lost and restored connections.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_nats::{Auth, AuthError, ConnectOptions, Event, ServerAddr, connection::State, jetstream};
use credentials::{BusUser, Credentials, SeedError, SeedFault, Server, UserKey};
use invariant::Present as _;
use model::Millis;
use parking_lot::Mutex;
use telemetry::metrics::{Counter, Gauge, count, set};
use tokio::sync::{OnceCell, watch};
use tracing::{debug, info, warn};

use crate::{
    BusError, Denied, FarmClock, Seals,
    admission::Admission,
    denials::{Denials, name_of},
    filter::Subjects,
    screen::Screen,
};

/// Whether to wait for a server that is not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Wait, and log a warning.
    Wait,
    /// Fail immediately with an error.
    None,
}

/// A connection to the bus. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Bus {
    pub(crate) client: async_nats::Client,
    denials: Denials,
    admission: Admission,
    pub(crate) js: jetstream::Context,
    pub(crate) clock: FarmClock,
    reconnects: watch::Receiver<u64>,
    /// The subscription to elections, shared by all that ask for it.
    pub(crate) elections: Arc<OnceLock<watch::Receiver<u64>>>,
    server: Arc<Server>,
    /// Subjects that the user may publish to; asked of the server at first use.
    pub(crate) publishes: Arc<OnceCell<Subjects>>,
    /// The relay that the connection passes through.
    screen: Option<Arc<Screen>>,
    name: Arc<str>,
    outside: Arc<OnceCell<Self>>,
    /// The key that proves which work was accepted, in processes that have it.
    pub(crate) seals: Option<Arc<Seals>>,
}

/// Signals reconnections: replies awaited before one will not arrive.
#[derive(Clone, Debug)]
pub struct Reconnects(watch::Receiver<u64>);

impl Reconnects {
    /// Returns at the next reconnection.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // The connection is closed for good; callers end by other means.
            std::future::pending::<()>().await;
        }
    }
}

/// The nats-server of a connection, as it described itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    pub name: String,
    /// Version number, for example `2.15.0`.
    pub version: String,
    /// Whether JetStream is enabled.
    pub has_jetstream: bool,
    /// Whether it admits only those who prove who they are.
    pub needs_key: bool,
    /// Whether it admits connections with TLS only.
    pub needs_tls: bool,
    /// Address on which it listens.
    pub host: String,
}

/// A connection for plain messages, which may be lost. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LiveConnection {
    pub(crate) client: async_nats::Client,
    denials: Denials,
    admission: Admission,
    reconnects: watch::Receiver<u64>,
    /// The relay that the connection passes through.
    screen: Option<Arc<Screen>>,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// All uses: the connection of a [`Bus`], which metrics describe.
    Main,
    /// Requests and calls, which strangers send.
    Outside,
    /// Subscriptions that keep so many unread messages.
    Live(usize),
}

impl Kind {
    fn capacity(self) -> usize {
        match self {
            Self::Main | Self::Outside => SUBSCRIPTION_CAPACITY,
            Self::Live(capacity) => capacity,
        }
    }
}

impl LiveConnection {
    async fn connect(server: &Server, name: &str, kind: Kind) -> Result<Self, ConnectError> {
        let (sender, reconnects) = watch::channel(0_u64);
        let (denials, admission) = (Denials::default(), Admission::default());
        let events = Arc::new(Events {
            reconnects: sender,
            denials: denials.clone(),
            admission: admission.clone(),
            last_error: Mutex::default(),
        });
        let Route { options, name, addresses, screen } = Route::of(server, name, kind).await?;
        let client = options
            .name(name)
            .connection_timeout(Duration::from_secs(5))
            .request_timeout(Some(REQUEST_TIMEOUT))
            .ping_interval(Duration::from_secs(20))
            .client_capacity(8192)
            .subscription_capacity(kind.capacity())
            .reconnect_delay_callback(|attempts| {
                let steps = u32::try_from(attempts.min(10)).present_or(10, "at most ten steps in 32 bits");
                (Duration::from_millis(20) * steps).min(RECONNECT_DELAY_MAX)
            })
            .event_callback(move |event| {
                let events = Arc::clone(&events);
                async move {
                    if let Kind::Main = kind {
                        measure(&event, &events.reconnects);
                    }
                    // With a small capacity, slow consumers are expected.
                    if kind.capacity() == SUBSCRIPTION_CAPACITY || !matches!(event, Event::SlowConsumer(_)) {
                        events.on(&event);
                    }
                }
            })
            .connect(addresses)
            .await?;
        Ok(Self { client, denials, admission, reconnects, screen })
    }

    /// Signals every reconnection from now on.
    pub fn reconnects(&self) -> Reconnects {
        let mut receiver = self.reconnects.clone();
        receiver.mark_unchanged();
        Reconnects(receiver)
    }
}

/// How a connection reaches nats-server.
struct Route {
    options: ConnectOptions,
    name: String,
    addresses: Vec<ServerAddr>,
    screen: Option<Arc<Screen>>,
}

impl Route {
    async fn of(server: &Server, name: &str, kind: Kind) -> Result<Self, ConnectError> {
        let addresses = addresses(&server.url)?;
        if !matches!(kind, Kind::Outside) {
            return Ok(Self { options: options(server)?, name: name.to_owned(), addresses, screen: None });
        }
        let screen = Screen::start(server, addresses).await?;
        Ok(Self {
            // The relay chooses the server, and encrypts.
            options: proving(server)?.ignore_discovered_servers(),
            name: screen.name(&format!("{name} outside")),
            addresses: vec![screen.url().parse()?],
            screen: Some(Arc::new(screen)),
        })
    }
}

/// Number of unread messages that a subscription keeps; further ones are dropped.
const SUBSCRIPTION_CAPACITY: usize = 65_536;
/// Shorter than the reply timeouts of callers, longer than a server's restart.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const ACK_TIMEOUT: Duration = Duration::from_secs(2);
/// A server answers at once; one that denies access to the subject does not answer.
const CLOCK_TIMEOUT: Duration = Duration::from_millis(500);
const RECONNECT_DELAY_MAX: Duration = Duration::from_millis(250);

/// Why a connection could not be opened.
type ConnectError = Box<dyn std::error::Error + Send + Sync>;

/// Tries to connect until it succeeds, or once without patience.
async fn connected<T, C: Future<Output = Result<T, ConnectError>>>(
    server: &Server,
    patience: Patience,
    connect: impl Fn() -> C,
) -> Result<T, BusError> {
    let url = server.shown();
    let mut warned = false;
    loop {
        match connect().await {
            Ok(connection) => return Ok(connection),
            Err(source) if patience == Patience::None => {
                return Err(BusError::Unreachable { url, source });
            }
            Err(error) => {
                if !warned {
                    warn!(url, %error, "waiting for nats-server");
                    warned = true;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

impl Bus {
    /// Maximum bytes of a message that the connected nats-server accepts.
    pub fn max_payload(&self) -> usize {
        self.client.server_info().max_payload
    }

    /// Connects to `server` as `name`. A key is read again at each connection, so that it can be replaced.
    ///
    /// # Errors
    ///
    /// Fails if the URL or the credentials cannot be used, and without patience if the server is not reachable.
    pub async fn connect(
        server: impl Into<Server>,
        name: &str,
        patience: Patience,
    ) -> Result<Self, BusError> {
        let server = Arc::new(server.into());
        usable(&server)?;
        connected(&server, patience, || Self::connect_once(&server, name, Kind::Main)).await
    }

    /// This connection, with the key of the farm that proves which work was accepted.
    #[must_use]
    pub fn with_seals(self, seals: Option<Seals>) -> Self {
        Self { seals: seals.map(Arc::new), ..self }
    }

    /// Another connection, for what strangers send: a message that cannot be parsed does not end it. Waits for a server.
    pub async fn outside(&self) -> Result<&Self, BusError> {
        let connect = || Self::connect_once(&self.server, &self.name, Kind::Outside);
        self.outside.get_or_try_init(|| connected(&self.server, Patience::Wait, connect)).await
    }

    async fn connect_once(server: &Arc<Server>, name: &str, kind: Kind) -> Result<Self, ConnectError> {
        let LiveConnection { client, denials, admission, reconnects, screen } =
            LiveConnection::connect(server, name, kind).await?;
        let js = jetstream::ContextBuilder::new()
            .timeout(REQUEST_TIMEOUT)
            .ack_timeout(ACK_TIMEOUT)
            .build(client.clone());
        let clock = FarmClock::of_this_machine(denials.clone());
        if let Err(error) = clock.measure_server(&client, CLOCK_TIMEOUT).await {
            debug!(%error, "cannot measure the time of nats-server yet");
        }
        tokio::spawn(clock.clone().remeasure(client.clone(), reconnects.clone()));
        let server = Arc::clone(server);
        let (elections, publishes, outside) = (Arc::default(), Arc::default(), Arc::default());
        Ok(Self {
            client,
            denials,
            admission,
            js,
            clock,
            reconnects,
            elections,
            server,
            publishes,
            screen,
            name: name.into(),
            outside,
            seals: None,
        })
    }

    /// Waits for a request on `subject`, which the server may deny.
    pub(crate) async fn unless_denied<T>(
        &self,
        subject: &str,
        request: impl Future<Output = T>,
    ) -> Result<T, Denied> {
        let answered = self.denials.unless_denied(subject, request).await;
        answered.ok_or_else(|| {
            // The connection was made with it.
            let user = self.server.credentials.user().ok().flatten();
            Denied { subject: subject.to_owned(), user }
        })
    }

    /// Waits until the server has all messages that were sent, at most for `limit`.
    pub async fn flush(&self, limit: Duration) -> Result<(), BusError> {
        let what = "sending buffered messages";
        match tokio::time::timeout(limit, self.client.flush()).await {
            Ok(flushed) => flushed.map_err(BusError::failed(what)),
            Err(_) => Err(BusError::Timeout { what: what.into() }),
        }
    }

    /// The server of this connection, as it described itself.
    pub fn server(&self) -> ServerInfo {
        let info = self.client.server_info();
        ServerInfo {
            name: info.server_name,
            version: info.version,
            has_jetstream: info.jetstream,
            needs_key: info.auth_required,
            needs_tls: info.tls_required,
            host: info.host,
        }
    }

    /// Returns when nats-server has refused the user of this connection for ten seconds, for example because it was revoked.
    pub async fn refused(&self) -> BusError {
        self.admission.refused().await;
        let user = self.server.credentials.user().ok().flatten();
        BusError::Refused { user: name_of(user.as_ref()) }
    }

    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// URL of the server that this bus is connected to.
    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// The server that this bus is connected to, with the credentials for it.
    pub fn server_address(&self) -> &Server {
        &self.server
    }

    pub fn clock(&self) -> &FarmClock {
        &self.clock
    }

    /// The current farm time.
    pub fn now(&self) -> Millis {
        self.clock.now()
    }

    /// Waits until the server has processed what was sent before, for example subscriptions: it answers in order.
    ///
    /// # Errors
    ///
    /// Fails if it does not answer within two seconds.
    pub async fn settle(&self) -> Result<(), BusError> {
        self.clock.measure_server(&self.client, ACK_TIMEOUT).await?;
        // Calls arrive there.
        match self.outside.get() {
            Some(outside) => outside.clock.measure_server(&outside.client, ACK_TIMEOUT).await,
            None => Ok(()),
        }
    }

    /// Measures the farm's time now. The clock also does so automatically: at every connection and every ten seconds.
    pub async fn measure_clock(&self, patience: Duration) -> Result<(), BusError> {
        self.clock.measure(&self.client, patience).await
    }

    /// Signals every reconnection from now on.
    pub fn reconnects(&self) -> Reconnects {
        let mut receiver = self.reconnects.clone();
        receiver.mark_unchanged();
        Reconnects(receiver)
    }

    /// The underlying connection, for subscriptions to plain messages.
    pub fn live_connection(&self) -> LiveConnection {
        LiveConnection {
            client: self.client.clone(),
            denials: self.denials.clone(),
            admission: self.admission.clone(),
            reconnects: self.reconnects.clone(),
            screen: self.screen.clone(),
        }
    }

    /// Opens another connection whose subscriptions keep at most `capacity` unread messages: for readers that can read
    /// again what they missed. Waits while no server is reachable.
    pub async fn connect_live(&self, name: &str, capacity: usize) -> Result<LiveConnection, BusError> {
        let connect = || LiveConnection::connect(&self.server, name, Kind::Live(capacity));
        connected(&self.server, Patience::Wait, connect).await
    }

    /// The NATS client, for tests; the functions of [`Bus`] are for all others.
    pub fn client(&self) -> &async_nats::Client {
        &self.client
    }

    /// The JetStream context, which applies the topology.
    pub fn jetstream(&self) -> &jetstream::Context {
        &self.js
    }

    /// Flushes buffered messages and closes the connection; each of the two steps takes at most `limit`.
    pub async fn close(&self, limit: Duration) {
        if let Some(outside) = self.outside.get() {
            Box::pin(outside.close(limit)).await;
        }
        if let Err(error) = self.flush(limit).await {
            debug!(error = telemetry::error_chain(&error), "before closing the connection");
        }
        // The caller needs the connection no longer: if it stays open, it ends with the process.
        let _ = tokio::time::timeout(limit, self.client.drain()).await;
    }
}

/// Connects for `forebay access`: fails at once if no server answers. `patience` is the time limit of the connection and of requests.
pub(crate) async fn connect_for_access(
    server: &Server,
    options: ConnectOptions,
    patience: Duration,
) -> Result<async_nats::Client, BusError> {
    let options = options.name("forebay access").connection_timeout(patience).request_timeout(Some(patience));
    let connected = options.connect(addresses(&server.url)?).await;
    connected.map_err(|error| BusError::Unreachable { url: server.shown(), source: Box::new(error) })
}

/// Fails if no attempt to connect can succeed until the settings change.
fn usable(server: &Server) -> Result<(), BusError> {
    addresses(&server.url)?;
    server.credentials.user()?;
    server.credentials.key()?;
    server.credentials.tls.client_config()?;
    Ok(())
}

/// Options of a connection with the credentials of the server, or else with the user in its URL.
pub(crate) fn options(server: &Server) -> Result<ConnectOptions, BusError> {
    with_tls(proving(server)?, &server.credentials)
}

/// The same without TLS.
fn proving(server: &Server) -> Result<ConnectOptions, BusError> {
    let credentials = &server.credentials;
    Ok(match credentials.user()? {
        None => match user_in_url(server)? {
            None => ConnectOptions::new(),
            Some((user, password)) => ConnectOptions::with_user_and_password(user, password),
        },
        Some(user) => {
            let credentials = credentials.clone();
            let prove = move |nonce: Vec<u8>| {
                let proof = proof_of(&credentials, &nonce).map_err(AuthError::new);
                std::future::ready(proof)
            };
            ConnectOptions::with_auth_callback(prove).custom_inbox_prefix(user.inbox())
        }
    })
}

/// Options of a connection as `user` with this key, which is in no file.
pub(crate) fn options_with_key(
    server: &Server,
    user: &BusUser,
    key: UserKey,
) -> Result<ConnectOptions, BusError> {
    let prove = move |nonce: Vec<u8>| {
        std::future::ready(proof(&key, &nonce).map_err(|error| AuthError::new(SeedFault::from(error))))
    };
    with_tls(ConnectOptions::with_auth_callback(prove).custom_inbox_prefix(user.inbox()), &server.credentials)
}

fn with_tls(options: ConnectOptions, credentials: &Credentials) -> Result<ConnectOptions, BusError> {
    Ok(match credentials.tls.client_config()? {
        None => options,
        // With authorities named, a connection without TLS is a mistake.
        Some(tls) => options.tls_client_config(tls).require_tls(true),
    })
}

/// The user and the password of the first URL that has them.
fn user_in_url(server: &Server) -> Result<Option<(String, String)>, BusError> {
    let both = |address: &ServerAddr| Some((address.username()?.to_owned(), address.password()?.to_owned()));
    Ok(addresses(&server.url)?.iter().find_map(both))
}

/// The answer to the number that a server chose for this connection, with the key as its file has it now.
fn proof_of(credentials: &Credentials, nonce: &[u8]) -> Result<Auth, SeedFault> {
    credentials.key()?.map_or_else(|| Ok(Auth::new()), |key| Ok(proof(&key, nonce)?))
}

fn proof(key: &UserKey, nonce: &[u8]) -> Result<Auth, SeedError> {
    let mut auth = Auth::new();
    auth.signature = Some(key.seed.sign(nonce)?);
    match &key.token {
        // It names the public key.
        Some(token) => auth.jwt = Some(token.reveal().to_owned()),
        None => auth.nkey = Some(key.seed.public().to_string()),
    }
    Ok(auth)
}

fn addresses(url: &str) -> Result<Vec<ServerAddr>, BusError> {
    let unusable = |source| BusError::Url { url: url.to_owned(), source };
    let address = |server: &str| {
        if server.starts_with("ws") && server.contains("://") {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "expected nats:// or tls://"));
        }
        server.parse()
    };
    url.split(',').map(|server| address(server.trim())).collect::<Result<_, _>>().map_err(unusable)
}

/// Counts what happens to the connection of a [`Bus`].
fn measure(event: &Event, reconnects: &watch::Sender<u64>) {
    match event {
        Event::Connected => {
            set(Gauge::BusConnected, &[], 1);
            if *reconnects.borrow() > 0 {
                count(Counter::BusReconnects, &[], 1);
            }
        }
        Event::Disconnected | Event::Closed => set(Gauge::BusConnected, &[], 0),
        Event::SlowConsumer(_) => count(Counter::BusSlowConsumers, &[], 1),
        Event::ServerError(_) | Event::ClientError(_) | Event::LameDuckMode | Event::Draining => {}
    }
}

/// What happens to a connection, for its log and those who wait.
struct Events {
    reconnects: watch::Sender<u64>,
    denials: Denials,
    admission: Admission,
    /// The last error of the server: each attempt to connect with a revoked key has the same.
    last_error: Mutex<Option<String>>,
}

impl Events {
    fn on(&self, event: &Event) {
        self.admission.on(event);
        match event {
            Event::Connected => {
                self.reconnects.send_modify(|count| *count += 1);
                info!("connected to nats-server");
            }
            Event::Disconnected => warn!("connection to nats-server lost"),
            Event::SlowConsumer(id) => warn!(id, "a subscription is too slow, dropping messages"),
            Event::ServerError(error) => {
                let error = error.to_string();
                // A request that is denied says so itself.
                if self.denials.note(&error) || self.last_error.lock().as_ref() == Some(&error) {
                    debug!(error, "nats-server reported an error");
                } else {
                    warn!(error, "nats-server reported an error");
                    *self.last_error.lock() = Some(error);
                }
            }
            // One event for every attempt to reconnect.
            Event::ClientError(error) => debug!(%error, "the NATS client reported an error"),
            Event::LameDuckMode | Event::Draining | Event::Closed => {
                info!(%event, "connection to nats-server");
            }
        }
    }
}
