//! A farm's servers with a generated configuration, and clients with the generated keys.

use std::{collections::BTreeSet, fs, path::PathBuf, time::Duration};

use access::{Access, Change, Days, SeedFolder, ServiceName, Signer, Slot, Who, push};
use async_nats::{Client, ConnectOptions, Event, Message, Request, Subscriber};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use credentials::{BusUser, Seed, SeedFault, Server, UserKey, UserToken};
use farm::{Guard, Port, Process, SOON, tool};
use futures::StreamExt as _;
use jetstream::Topology;
use nkeys::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{process::Command, sync::mpsc, time::timeout};

/// Time within which something that must not arrive would have arrived, after what is known to come later has arrived.
pub(crate) const QUIET: Duration = Duration::from_millis(100);

/// Whether nats-server writes the second form of acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acks {
    First,
    Second,
}

/// How nats-server knows users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// By public keys in its configuration.
    Keys,
    /// By JWTs that an operator and accounts have signed.
    Jwt,
}

/// Runs each test in both modes: `async fn NAME(world: World)`.
macro_rules! in_both_modes {
    ($($name:ident),* $(,)?) => {
        mod with_keys {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(crate::support::World::start_in(crate::support::Mode::Keys).await).await;
            })*
        }
        mod with_jwts {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(crate::support::World::start_in(crate::support::Mode::Jwt).await).await;
            })*
        }
    };
}
pub(crate) use in_both_modes;

pub(crate) struct World {
    pub(crate) access: Access,
    pub(crate) seeds: SeedFolder,
    pub(crate) port: Port,
    /// A user of tenant a whose permissions, by mistake, allow everything in its account.
    careless: Seed,
    acks: Acks,
    mode: Mode,
    process: Option<Process>,
    guard: Guard,
    pub(crate) folder: TempDir,
}

/// A connection of one user, and what the server denied to it.
pub(crate) struct User {
    pub(crate) client: Client,
    denied: mpsc::UnboundedReceiver<String>,
}

fn set<T: std::str::FromStr<Err: std::fmt::Debug> + Ord>(texts: &[&str]) -> BTreeSet<T> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

pub(crate) fn tenant(name: &str, groups: &[&str], priorities: &[&str], watches: &[&str]) -> Change {
    let (groups, watches) = (set(groups), set(watches));
    let priorities = priorities.iter().map(|text| text.parse().unwrap()).collect();
    Change::Tenant { name: name.parse().unwrap(), groups, priorities, watches }
}

pub(crate) fn publisher(user: &str, groups: &[&str], priorities: &[&str]) -> Change {
    let priorities = priorities.iter().map(|text| text.parse().unwrap()).collect();
    Change::Publisher { user: user.parse().unwrap(), groups: set(groups), priorities }
}

pub(crate) fn watcher(user: &str, groups: &[&str]) -> Change {
    Change::Watcher { user: user.parse().unwrap(), groups: set(groups) }
}

pub(crate) fn service(name: &str) -> Change {
    Change::Service(name.parse().unwrap())
}

/// The services, and two tenants: `a` has groups a1 and a2, `b` has group b1 and watches a2.
pub(crate) fn changes() -> Vec<Change> {
    let mut changes: Vec<Change> =
        access::Role::ALL.iter().map(|role| service(&format!("{role}/1"))).collect();
    changes.extend(["worker/w-1", "worker/w-2", "executor/e-1", "executor/e-2"].map(service));
    changes.extend([
        tenant("a", &["a1", "a2"], &[], &[]),
        publisher("a/ci", &[], &[]),
        publisher("a/nightly", &["a1"], &["batch"]),
        watcher("a/dashboard", &["a1"]),
        tenant("b", &["b1"], &["interactive", "batch"], &["a2"]),
        publisher("b/ci", &[], &[]),
        watcher("b/dashboard", &[]),
    ]);
    changes
}

impl World {
    /// Starts nats-server with the configuration of [`changes`], and creates the streams.
    pub(crate) async fn start() -> Self {
        Self::start_with(Acks::First, Mode::Keys).await
    }

    pub(crate) async fn start_in(mode: Mode) -> Self {
        Self::start_with(Acks::First, mode).await
    }

    pub(crate) async fn start_with(acks: Acks, mode: Mode) -> Self {
        let mut world = Self::prepare_in(acks, mode, &changes());
        world.start_nats().await;
        world.create_streams().await;
        world
    }

    pub(crate) fn prepare(acks: Acks, changes: &[Change]) -> Self {
        Self::prepare_in(acks, Mode::Keys, changes)
    }

    pub(crate) fn prepare_in(acks: Acks, mode: Mode, changes: &[Change]) -> Self {
        let folder = tempfile::Builder::new().prefix("forebay-test-").tempdir().unwrap();
        let guard = Guard::start(folder.path());
        let mut world = Self {
            access: Access::default(),
            seeds: SeedFolder::new(&folder.path().join("seeds")),
            port: Port::reserve(),
            careless: Seed::generate().unwrap(),
            acks,
            mode,
            process: None,
            guard,
            folder,
        };
        if mode == Mode::Jwt {
            world.access = world.seeds.with_operator(&world.access, Days::default(), now()).unwrap().0;
        }
        for change in changes {
            world.change(change);
        }
        world.write();
        world
    }

    /// The description that these changes make, with keys that are not kept.
    pub(crate) fn describe(changes: &[Change]) -> Access {
        let new_key = |_: &Who, _: Slot| -> Result<Seed, SeedFault> { Ok(Seed::generate()?) };
        changes.iter().fold(Access::default(), |access, change| access.changed(change, new_key).unwrap())
    }

    /// Starts nats-server again, with the configuration that is there.
    pub(crate) async fn restart(&mut self) {
        // A process is killed when it is dropped.
        drop(self.process.take());
        self.start_nats().await;
    }

    /// The same without giving it accounts.
    pub(crate) async fn restart_only(&mut self) {
        drop(self.process.take());
        self.start_process().await;
    }

    /// Stops nats-server, and prepares it for users with JWTs as `docs/security.md` says.
    pub(crate) fn give_jwts(&mut self) {
        drop(self.process.take());
        self.mode = Mode::Jwt;
        self.access = self.seeds.with_operator(&self.access, Days::default(), now()).unwrap().0;
        let accounts = self.folder.path().join("streams/jetstream");
        let account = self.account_seed("FARM").public_key();
        fs::rename(accounts.join("FARM"), accounts.join(account)).unwrap();
        self.write();
    }

    /// A user of the system account that may change accounts, as `forebay access apply` makes it for itself.
    pub(crate) fn monitor_of_accounts(&self) -> (BusUser, UserKey) {
        let system = self.account_seed("SYS");
        let seed = Seed::generate().unwrap();
        let all = json!({ "pub": { "allow": [">"] }, "sub": { "allow": [">"] }, "subs": -1, "data": -1, "payload": -1 });
        let token = user_token(&system, &system, seed.public().as_str(), &all, None);
        (BusUser::new("test", "1"), UserKey { seed, token: Some(UserToken::new(token)) })
    }

    /// Makes a change and writes the seed of a new key.
    pub(crate) fn change(&mut self, change: &Change) {
        self.access = self.seeds.change(&self.access, change).unwrap().0;
    }

    pub(crate) fn signer(&self) -> Signer {
        self.seeds.signer(&self.access).unwrap()
    }

    /// Gives the running server the accounts of the description, and writes its configuration and the JWTs of users.
    pub(crate) async fn push(&mut self) -> access::Pushed {
        self.write();
        let pushed = push(&self.access, &self.signer(), &Server::open(self.url()), now()).await.unwrap();
        let issued = self.seeds.issue(&self.access, &self.signer().with_new_keys(), now()).unwrap();
        self.access = self.access.with_used_keys(&issued);
        pushed
    }

    /// Writes the configuration of nats-server.
    pub(crate) fn write(&mut self) {
        let users = match self.mode {
            Mode::Keys => self.configured_users(),
            Mode::Jwt => {
                self.access = Access::parse(&self.access.with_issued().to_toml()).unwrap();
                let (signer, accounts) = (self.signer(), self.folder.path().join("accounts"));
                self.seeds.issue(&self.access, &signer, now()).unwrap();
                access::nats_config_with_jwts(&self.access, &signer, &accounts, now()).unwrap()
            }
        };
        fs::write(self.folder.path().join("users.conf"), users).unwrap();
        let features = match self.acks {
            Acks::First => "",
            Acks::Second => "feature_flags { js_ack_fc_v2: true }\n",
        };
        let text = format!(
            "server_name: test\nlisten: \"127.0.0.1:{}\"\njetstream {{ store_dir: \"{}\" }}\n{features}include users.conf\n",
            self.port.number(),
            self.folder.path().join("streams").display(),
        );
        fs::write(self.config(), text).unwrap();
    }

    /// Accounts and users with public keys, and the careless user.
    fn configured_users(&self) -> String {
        let users = access::nats_config(&self.access);
        let place = "  \"TENANT_a\" {";
        let key = self.careless.public();
        let careless = format!(
            "    users [\n      {{ nkey: {key}, permissions {{ publish {{ allow: [\">\"] }}, subscribe {{ allow: [\">\"] }} }} }}\n"
        );
        match users.split_once(place) {
            Some((before, after)) => {
                format!("{before}{place}{}", after.replacen("    users [\n", &careless, 1))
            }
            None => users,
        }
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("nats.conf")
    }

    pub(crate) async fn start_nats(&mut self) {
        self.start_process().await;
        if self.mode == Mode::Jwt {
            push(&self.access, &self.signer(), &Server::open(self.url()), now()).await.unwrap();
        }
    }

    async fn start_process(&mut self) {
        let mut command = Command::new(tool("nats-server"));
        command.arg("--config").arg(self.config());
        let log = self.folder.path().join("nats.log");
        self.process = Some(Process::start("nats", command, &log, &self.guard));
        let ready = async {
            while tokio::net::TcpStream::connect(("127.0.0.1", self.port.number())).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let started = timeout(SOON, ready).await;
        started.unwrap_or_else(|_| panic!("{}", fs::read_to_string(log).unwrap_or_default()));
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().pid()
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port.number())
    }

    /// Creates all streams and consumers, as the role that may.
    async fn create_streams(&self) {
        let topology = Topology::new(&settings::Settings::default().topology());
        let user = self.connect("topology/1").await;
        let context = async_nats::jetstream::new(user.client.clone());
        for config in topology.streams {
            context.create_stream(config).await.unwrap();
        }
        for spec in topology.consumers {
            context.create_consumer_on_stream(spec.config, spec.stream).await.unwrap();
        }
    }

    /// The key and the prefix of inboxes of a user.
    pub(crate) fn credentials(&self, name: &str, slot: Slot) -> (UserKey, String) {
        let who: Who = name.parse().unwrap();
        let inbox = match &who {
            Who::Service(service) => service.bus_user().inbox(),
            Who::User(user) => user.bus_user().inbox(),
            Who::Tenant(_) => panic!("{name} is a tenant"),
        };
        (UserKey::read(&self.access.key_file(&self.seeds, &who, slot)).unwrap().unwrap(), inbox)
    }

    /// Connects as `TENANT/USER` or `ROLE/NAME`.
    pub(crate) async fn connect(&self, name: &str) -> User {
        let (key, inbox) = self.credentials(name, Slot::Current);
        self.try_connect(&key, &inbox).await.unwrap()
    }

    /// Connects as a user of tenant a that may do everything in its account.
    pub(crate) async fn careless(&self) -> User {
        let mut key = UserKey::from(self.careless.clone());
        if self.mode == Mode::Jwt {
            let permissions = json!({ "pub": { "allow": [">"] }, "sub": { "allow": [">"] }, "subs": -1, "data": -1, "payload": -1 });
            let account = self.account_seed("TENANT_a");
            let token = user_token(&account, &account, self.careless.public().as_str(), &permissions, None);
            key.token = Some(UserToken::new(token));
        }
        self.try_connect(&key, "_INBOX").await.unwrap()
    }

    /// The secret key of an account.
    pub(crate) fn account_seed(&self, account: &str) -> KeyPair {
        let text = fs::read_to_string(self.folder.path().join(format!("seeds/{account}.nk"))).unwrap();
        KeyPair::from_seed(text.trim()).unwrap()
    }

    pub(crate) async fn try_connect(
        &self,
        key: &UserKey,
        inbox: &str,
    ) -> Result<User, async_nats::ConnectError> {
        self.try_connect_to(&self.url(), key, inbox).await
    }

    /// The same to a server of a cluster.
    pub(crate) async fn try_connect_to(
        &self,
        url: &str,
        key: &UserKey,
        inbox: &str,
    ) -> Result<User, async_nats::ConnectError> {
        let (sender, denied) = mpsc::unbounded_channel();
        let options = match &key.token {
            None => ConnectOptions::with_nkey(key.seed.reveal().to_owned()),
            Some(_) => ConnectOptions::with_credentials(&key.reveal()).unwrap(),
        };
        let client = options
            .custom_inbox_prefix(inbox)
            .request_timeout(Some(Duration::from_secs(5)))
            .event_callback(move |event| {
                let sender = sender.clone();
                async move {
                    if let Event::ServerError(error) = event {
                        let _ = sender.send(error.to_string());
                    }
                }
            })
            .connect(url)
            .await?;
        Ok(User { client, denied })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.folder.path().join("nats.log")).unwrap_or_default());
        }
    }
}

impl User {
    /// Publishes and waits until the server denies it.
    pub(crate) async fn is_denied_publish(&mut self, subject: &str) {
        self.client.publish(subject.to_owned(), Bytes::new()).await.unwrap();
        self.client.flush().await.unwrap();
        let wanted = format!("permissions violation for publish to \"{subject}\"").to_lowercase();
        self.denial(&wanted).await;
    }

    /// Subscribes and waits until the server denies it.
    pub(crate) async fn is_denied_subscribe(&mut self, subject: &str) {
        let _subscription = self.client.subscribe(subject.to_owned()).await.unwrap();
        self.client.flush().await.unwrap();
        let wanted = format!("permissions violation for subscription to \"{subject}\"").to_lowercase();
        self.denial(&wanted).await;
    }

    /// Waits until the server has refused something with this text.
    pub(crate) async fn denial(&mut self, wanted: &str) {
        let found = async {
            loop {
                let error = self.denied.recv().await.unwrap();
                if error.to_lowercase().contains(wanted) {
                    return;
                }
            }
        };
        timeout(SOON, found).await.unwrap_or_else(|_| panic!("not denied: {wanted}"));
    }

    /// Everything that the server denied so far.
    pub(crate) async fn denials(&mut self) -> Vec<String> {
        // The server answers in order.
        self.client.request("$SYS.REQ.USER.INFO", Bytes::new()).await.unwrap();
        let mut all = Vec::new();
        while let Ok(Some(error)) = timeout(QUIET, self.denied.recv()).await {
            all.push(error);
        }
        all
    }

    pub(crate) async fn subscribe(&self, subject: &str) -> Subscriber {
        let subscriber = self.client.subscribe(subject.to_owned()).await.unwrap();
        // The server has the subscription when it answers what was sent after it.
        self.client.request("$SYS.REQ.USER.INFO", Bytes::new()).await.unwrap();
        subscriber
    }

    /// The answer to a request.
    pub(crate) async fn ask(&self, subject: &str, body: &str) -> Message {
        let answer = self.client.request(subject.to_owned(), body.to_owned().into()).await;
        answer.unwrap_or_else(|error| panic!("{subject}: {error}"))
    }

    pub(crate) async fn ask_with(&self, subject: &str, headers: &[(&str, &str)], body: &str) -> Message {
        let mut map = async_nats::HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, *value);
        }
        let request = Request::new().headers(map).payload(body.to_owned().into());
        let answer = self.client.send_request(subject.to_owned(), request).await;
        answer.unwrap_or_else(|error| panic!("{subject}: {error}"))
    }

    /// Checks that nothing listens on `subject` in the account of this user.
    pub(crate) async fn finds_none_at(&self, subject: &str, body: &str) {
        let answer = self.client.request(subject.to_owned(), body.to_owned().into()).await;
        let error = answer.err().unwrap_or_else(|| panic!("{subject} was answered"));
        assert_eq!(error.kind(), async_nats::client::RequestErrorKind::NoResponders, "{subject}");
    }

    /// Publishes with a subject for the answer that is not an inbox of this user.
    pub(crate) async fn publish_with_reply(&self, subject: &str, reply: &str, body: &str) {
        let sent =
            self.client.publish_with_reply(subject.to_owned(), reply.to_owned(), body.to_owned().into());
        sent.await.unwrap();
        self.client.flush().await.unwrap();
    }

    /// The answer of a stream to a message that it should store.
    pub(crate) async fn stored(&self, subject: &str, body: &str) -> u64 {
        let answer = self.ask(subject, body).await;
        json(&answer)["seq"].as_u64().unwrap_or_else(|| panic!("{subject}: {:?}", answer.payload))
    }

    /// Number of messages of a stream.
    pub(crate) async fn messages(&self, stream: &str) -> u64 {
        let answer = self.ask(&format!("$JS.API.STREAM.INFO.{stream}"), "").await;
        json(&answer)["state"]["messages"].as_u64().unwrap()
    }
}

/// The time, in seconds since 1970.
pub(crate) fn now() -> i64 {
    time::OffsetDateTime::now_utc().unix_timestamp()
}

/// A JWT with these claims, made without the code of the product.
pub(crate) fn forged(signer: &KeyPair, mut claims: Value) -> String {
    claims["iss"] = signer.public_key().into();
    claims["jti"] = "FORGED".into();
    let header = URL_SAFE_NO_PAD.encode(r#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let text = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let signature = URL_SAFE_NO_PAD.encode(signer.sign(text.as_bytes()).unwrap());
    format!("{text}.{signature}")
}

/// The JWT of a user with permissions of its own.
pub(crate) fn user_token(
    signer: &KeyPair,
    account: &KeyPair,
    user: &str,
    permissions: &Value,
    expires: Option<i64>,
) -> String {
    let mut nats = permissions.clone();
    nats["type"] = "user".into();
    nats["version"] = 2.into();
    nats["issuer_account"] = account.public_key().into();
    let mut claims = json!({ "iat": now() - 60, "sub": user, "name": "forged", "nats": nats });
    if let Some(expires) = expires {
        claims["exp"] = expires.into();
    }
    forged(signer, claims)
}

pub(crate) fn json(message: &Message) -> Value {
    serde_json::from_slice(&message.payload).unwrap()
}

/// The next message, which must come.
pub(crate) async fn next(subscriber: &mut Subscriber) -> Message {
    timeout(SOON, subscriber.next()).await.expect("a message").expect("an open subscription")
}

/// Checks that no message came.
pub(crate) async fn nothing(subscriber: &mut Subscriber) {
    if let Ok(Some(message)) = timeout(QUIET, subscriber.next()).await {
        panic!("received {} {:?}", message.subject, message.payload);
    }
}

/// All services of [`changes`].
pub(crate) fn services(access: &Access) -> Vec<ServiceName> {
    access.services().keys().cloned().collect()
}
