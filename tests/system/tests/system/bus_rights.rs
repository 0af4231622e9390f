//! Every subject and stream of the farm, tried with the keys of another tenant, of a worker and of an executor.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use access::{Access, Instance, Role, ServiceName, rights_of};
use async_nats::{Client, ConnectOptions, Event, Subscriber};
use bus::{ApiCall, ArchiveCall};
use farm::{Guard, Output, Port, Process, SOON, bare_command, tool};
use futures::StreamExt as _;
use jetstream::Topology;
use settings::Settings;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::{
    access::{Folder, nats},
    decided::{Allowed, compare},
};

/// Who tries, and the user whose key it has. The builds that they should not reach are those of group `web`.
const KEYS: [(&str, &str); 4] = [
    ("publisher", "mallory.ci"),
    ("watcher", "mallory.eyes"),
    ("worker", "worker.1"),
    ("executor", "executor.1"),
];
/// Filters that are wider than those of any service.
const WIDE: [&str; 7] = [">", "*.>", "forebay.>", "$JS.>", "$KV.>", "$SYS.>", "_INBOX.>"];
/// A user of the account of the farm who sees all that is published there.
const OBSERVER: &str =
    "{ user: observer, password: observer, permissions { publish: \">\", subscribe: \">\" } }\n";
/// Subject that only the observer may use: its refusal shows that the server has processed all earlier messages.
const LAST: &str = "nowhere.at.all";

/// Requests of JetStream: to a stream, or with `-` to all.
const VERBS: &[&str] = &[
    "ACCOUNT.PURGE",
    "ACCOUNT.STREAM.CANCEL",
    "ACCOUNT.STREAM.MOVE",
    "CONSUMER.CREATE",
    "CONSUMER.DELETE",
    "CONSUMER.DURABLE.CREATE",
    "CONSUMER.INFO",
    "CONSUMER.LEADER.STEPDOWN",
    "CONSUMER.LIST",
    "CONSUMER.MSG.NEXT",
    "CONSUMER.NAMES",
    "CONSUMER.PAUSE",
    "CONSUMER.PEER.EVACUATE",
    "CONSUMER.PEER.REMOVE",
    "CONSUMER.RESET",
    "CONSUMER.UNPIN",
    "DIRECT.GET",
    "INFO",
    "META.LEADER.STEPDOWN",
    "META.RESCUE",
    "SERVER.EVACUATE",
    "SERVER.REMOVE",
    "STREAM.CANCEL",
    "STREAM.CREATE",
    "STREAM.DELETE",
    "STREAM.INFO",
    "STREAM.LEADER.STEPDOWN",
    "STREAM.LIST",
    "STREAM.MSG.DELETE",
    "STREAM.MSG.GET",
    "STREAM.NAMES",
    "STREAM.PEER.EVACUATE",
    "STREAM.PEER.REMOVE",
    "STREAM.PURGE",
    "STREAM.RESTORE",
    "STREAM.SNAPSHOT",
    "STREAM.UPDATE",
];

/// A nats-server with the generated users of a farm with two tenants.
struct Locked {
    folder: Folder,
    port: Port,
    access: Access,
    observer: Client,
    _server: (Process, Guard),
}

impl Locked {
    async fn start() -> Self {
        let folder = Folder::new();
        for words in [
            "init --seeds seeds",
            "grant tenant shop --group web",
            "grant publisher shop/ci --seeds seeds",
            "grant tenant mallory --group mallory",
            "grant publisher mallory/ci --seeds seeds",
            "grant watcher mallory/eyes --seeds seeds",
            "apply --seeds seeds --nats-config users.conf --redis-acl users.acl",
        ] {
            folder.json(words).await;
        }
        let config = folder.path().join("users.conf");
        let text = fs::read_to_string(&config).unwrap();
        let (before, farm) = text.split_at(text.find("\"FARM\"").unwrap());
        let farm = farm.replacen("users [", &format!("users [\n{OBSERVER}"), 1);
        fs::write(&config, format!("{before}{farm}")).unwrap();
        let (guard, port) = (Guard::start(folder.path()), Port::reserve());
        let process = nats(&folder, &port, &guard).await;
        let url = format!("nats://127.0.0.1:{}", port.number());
        let mut topology = bare_command(&["topology", "--apply", "--nats", &url]);
        topology.current_dir(folder.path()).env("FOREBAY_SEED_FILE", "seeds/topology.1.seed");
        let output = Output::of(topology).await;
        assert_eq!(output.code, 0, "{output:?}");
        let access = fs::read_to_string(folder.path().join("access.toml")).unwrap();
        let access = Access::parse(&access).unwrap();
        let options = ConnectOptions::with_user_and_password("observer".to_owned(), "observer".to_owned());
        let observer = options.connect(&url).await.unwrap();
        Self { folder, port, access, observer, _server: (process, guard) }
    }

    async fn connect(&self, user: &str) -> Trying {
        let seed = fs::read_to_string(self.folder.path().join(format!("seeds/{user}.seed"))).unwrap();
        let (sender, errors) = unbounded_channel();
        let options = ConnectOptions::with_nkey(seed.trim().to_owned())
            .custom_inbox_prefix(format!("_INBOX_{user}"))
            .event_callback(move |event| {
                if let Event::ServerError(error) = event {
                    // The test may have ended.
                    let _ = sender.send(error.to_string());
                }
                async {}
            });
        let client = options.connect(format!("nats://127.0.0.1:{}", self.port.number())).await.unwrap();
        Trying { client, errors }
    }
}

/// A connection, and what the server refuses to it.
struct Trying {
    client: Client,
    errors: UnboundedReceiver<String>,
}

/// What a connection tries with a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Try {
    Publish,
    Subscribe,
}

/// A subject with what is tried.
type Tried = (Try, String);

impl Trying {
    /// What the server permits of these.
    async fn permitted(mut self, who: &str, tries: BTreeSet<Tried>) -> BTreeSet<Tried> {
        let (mut denied, mut held) = (BTreeSet::new(), Vec::new());
        let all: Vec<&Tried> = tries.iter().collect();
        // The client keeps a limited number of errors.
        for some in all.chunks(50) {
            for (kind, subject) in some {
                match kind {
                    Try::Publish => self.publish(subject, who).await,
                    Try::Subscribe => held.push(self.client.subscribe(subject.clone()).await.unwrap()),
                }
            }
            self.publish(LAST, who).await;
            denied.extend(self.denied().await);
        }
        tries.difference(&denied).cloned().collect()
    }

    async fn publish(&self, subject: &str, who: &str) {
        self.client.publish(subject.to_owned(), who.to_owned().into()).await.unwrap();
    }

    /// What the server refused before the last subject.
    async fn denied(&mut self) -> Vec<Tried> {
        let mut denied = Vec::new();
        loop {
            let error = tokio::time::timeout(SOON, self.errors.recv()).await.unwrap().unwrap();
            let (_, violation) =
                error.split_once("Permissions Violation for ").unwrap_or_else(|| panic!("{error}"));
            let kind = if violation.starts_with("Publish") { Try::Publish } else { Try::Subscribe };
            let subject = violation.split('"').nth(1).unwrap();
            if subject == LAST {
                return denied;
            }
            denied.push((kind, subject.to_owned()));
        }
    }
}

/// The subjects that string literals of the crates of messages name, with `*` for what varies.
fn in_sources() -> BTreeSet<String> {
    let of_messages = |path: &str| {
        ["shared/bus/src/", "shared/model/src/", "jetstream/src/"].iter().any(|it| path.starts_with(it))
            && !path.contains("/tests")
    };
    let files = tidy::files("rs").into_iter().filter(|file| of_messages(&file.path));
    let mut found = BTreeSet::new();
    for file in files {
        let text = file.text.split("#[cfg(test)]").next().unwrap_or_default();
        let literals =
            text.split('"').filter(|it| it.starts_with("forebay.") || it.starts_with("$KV.FOREBAY_"));
        found.extend(literals.filter(|it| !it.contains(['<', ' ', '\\'])).filter_map(filter_of));
    }
    assert!(found.len() > 50, "{found:?}");
    // Of some, other literals have the rest.
    let is_whole = |it: &&String| !found.iter().any(|other| other.starts_with(&format!("{it}.")));
    found.iter().filter(is_whole).cloned().collect()
}

/// The filter that a literal with placeholders means; `None` for the beginning of a subject.
fn filter_of(literal: &str) -> Option<String> {
    let tokens = literal.split('.').map(|token| if token.contains('{') { "*" } else { token });
    (!literal.ends_with('.')).then(|| tokens.collect::<Vec<_>>().join("."))
}

/// All subjects that a process of the farm may use, that its streams store, and that cross to a tenant.
fn subjects(access: &Access) -> BTreeSet<String> {
    let mut all: BTreeSet<String> = WIDE.map(str::to_owned).into();
    all.extend(in_sources());
    for (role, name) in Role::ALL.into_iter().flat_map(|role| [(role, "1"), (role, "other")]) {
        let rights = rights_of(&ServiceName::new(role, name.parse::<Instance>().unwrap()));
        all.extend(rights.publish().iter().chain(rights.subscribe()).cloned());
    }
    for user in access.users() {
        let rights = user.rights();
        all.extend(rights.publish().iter().chain(rights.subscribe()).cloned());
    }
    for stream in Topology::new(&Settings::default().topology()).streams {
        all.extend(stream.subjects);
        all.extend(stream.republish.map(|live| live.destination));
    }
    all.extend(ApiCall::ALL.map(|call| format!("forebay.api.{}.web", call.as_str())));
    all.extend(ArchiveCall::ALL.map(|call| format!("forebay.archive.{}", call.as_str())));
    all
}

/// Whether it is a request to JetStream. Those for the last event of a build name a group.
fn is_request(subject: &str) -> bool {
    subject.starts_with("$JS.API.") && !subject.contains(".forebay.build.event.")
}

/// A subject that the filter matches: of group `web`, where it names one.
fn example(filter: &str) -> String {
    let mut names = ["web"].into_iter().chain(std::iter::repeat("x"));
    let tokens =
        filter.split('.').map(|token| if matches!(token, "*" | ">") { names.next().unwrap() } else { token });
    tokens.collect::<Vec<_>>().join(".")
}

/// All forms of a request to a stream, by the verb: with the stream, with a consumer, and with a filter.
fn requests(stream: &str, consumers: &[String]) -> BTreeMap<String, &'static str> {
    let mut all = BTreeMap::new();
    for verb in VERBS {
        let request = format!("$JS.API.{verb}.{stream}");
        for end in consumers.iter().map(String::as_str).chain(["x", "x.x"]) {
            all.insert(format!("{request}.{end}"), *verb);
        }
        all.insert(request, verb);
    }
    for consumer in consumers.iter().map(String::as_str).chain(["x"]) {
        all.insert(format!("$JS.ACK.{stream}.{consumer}.1.1.1.1.1"), "ACK");
        all.insert(format!("$JS.ACK.x.x.{stream}.{consumer}.1.1.1.1.1"), "ACK");
    }
    all
}

/// The requests to all streams of the farm, by stream. Those that name none belong to `-`.
fn all_requests() -> BTreeMap<String, BTreeMap<String, &'static str>> {
    let Topology { streams, consumers } = Topology::new(&Settings::default().topology());
    let of = |stream: &str| -> Vec<String> {
        consumers.iter().filter(|it| it.stream == stream).map(|it| it.name().to_owned()).collect()
    };
    let mut all: BTreeMap<_, _> =
        streams.iter().map(|it| (it.name.clone(), requests(&it.name, &of(&it.name)))).collect();
    all.insert("-".to_owned(), VERBS.iter().map(|verb| (format!("$JS.API.{verb}"), *verb)).collect());
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn each_subject_is_open_to_whom_a_person_decided() {
    let locked = Locked::start().await;
    let farm = locked.observer.subscribe(">").await.unwrap();
    locked.observer.flush().await.unwrap();
    let mut filters = subjects(&locked.access);
    // The other test tries these.
    filters.retain(|it| !it.starts_with("$JS.ACK.") && !is_request(it));
    let examples: BTreeMap<&String, String> =
        filters.iter().map(|filter| (filter, example(filter))).collect();
    let tries = examples.iter().flat_map(|(filter, example)| {
        let part = || example.clone();
        [(Try::Publish, part()), (Try::Subscribe, part()), (Try::Subscribe, (*filter).clone())]
    });
    let tries: BTreeSet<Tried> = tries.collect();
    let mut found: Allowed = filters.iter().map(|filter| (filter.clone(), BTreeSet::new())).collect();
    for (who, user) in KEYS {
        let permitted = locked.connect(user).await.permitted(who, tries.clone()).await;
        let is = |kind: Try, subject: &str| permitted.contains(&(kind, subject.to_owned()));
        for (filter, example) in &examples {
            let whole = is(Try::Subscribe, filter);
            let rights = [
                (is(Try::Publish, example), "publish"),
                (whole, "subscribe"),
                (is(Try::Subscribe, example) && !whole, "subscribe-part"),
            ];
            let rights = rights.into_iter().filter(|(is, _)| *is).map(|(_, what)| format!("{who}:{what}"));
            found.get_mut(*filter).unwrap().extend(rights);
        }
    }
    for (subject, who) in reached(&locked.observer, farm).await {
        if !KEYS[..2].iter().any(|(tenant, _)| *tenant == who) {
            continue;
        }
        let rows = examples.iter().filter(|(_, example)| **example == subject);
        let rows: Vec<_> = rows.map(|(filter, _)| (*filter).clone()).collect();
        assert!(!rows.is_empty(), "{who} reaches {subject} by another subject");
        for row in rows {
            found.get_mut(&row).unwrap().insert(format!("{who}:reaches"));
        }
    }
    compare("subjects.txt", include_str!("decided/subjects.txt"), &found);
}

/// What has arrived in the account of the farm: subjects, with who published.
async fn reached(observer: &Client, mut farm: Subscriber) -> BTreeSet<(String, String)> {
    observer.publish(LAST, "".into()).await.unwrap();
    let mut all = BTreeSet::new();
    loop {
        let message = tokio::time::timeout(SOON, farm.next()).await.unwrap().unwrap();
        if message.subject.as_str() == LAST {
            return all;
        }
        all.insert((message.subject.to_string(), String::from_utf8_lossy(&message.payload).into_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_stream_is_open_to_whom_a_person_decided() {
    let locked = Locked::start().await;
    let all = all_requests();
    let subjects = all.values().flat_map(|requests| requests.keys().cloned());
    let tries: BTreeSet<Tried> = subjects.map(|subject| (Try::Publish, subject)).collect();
    let mut found: Allowed = all.keys().map(|stream| (stream.clone(), BTreeSet::new())).collect();
    for (who, user) in KEYS {
        let permitted = locked.connect(user).await.permitted(who, tries.clone()).await;
        let is = |subject: &String| permitted.contains(&(Try::Publish, subject.clone()));
        for (stream, requests) in &all {
            let allowed = requests.iter().filter(|(subject, _)| is(subject));
            found.get_mut(stream).unwrap().extend(allowed.map(|(_, verb)| format!("{who}:{verb}")));
        }
    }
    compare("streams.txt", include_str!("decided/streams.txt"), &found);
}

#[test]
fn each_request_of_jetstream_is_tried() {
    // Constants stand without a separator in the program: after a name may be the beginning of another one.
    let program = fs::read(tool("nats-server")).unwrap();
    let is_name = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'.';
    let mut unknown = BTreeSet::new();
    let start = b"$JS.API.";
    for place in program.windows(start.len()).enumerate().filter(|(_, it)| it == start).map(|(at, _)| at) {
        let name: Vec<u8> = program[place + start.len()..].iter().copied().take_while(is_name).collect();
        let name = String::from_utf8(name).unwrap();
        let name = name.trim_end_matches('.');
        let is_tried = |verb: &&&str| name.starts_with(**verb) || verb.starts_with(name);
        if name.len() > 1 && !VERBS.iter().any(|verb| is_tried(&verb)) {
            unknown.insert(name.to_owned());
        }
    }
    assert_eq!(unknown, BTreeSet::new(), "decide who may send these");
    let ours = subjects(&Access::default());
    let untried = ours.iter().filter_map(|subject| subject.strip_prefix("$JS.API."));
    let untried: Vec<&str> =
        untried.filter(|name| !VERBS.iter().any(|verb| name.starts_with(verb))).collect();
    assert_eq!(untried, Vec::<&str>::new());
}
