//! A hostile tenant with keys of its own, who knows all names and ids of another tenant: it reads nothing, writes nothing, and delays
//! no build of the other.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use futures::StreamExt as _;
use model::{BuildId, BuildKey, Endpoints, Outcome, Priority};
use parking_lot::Mutex;
use tokio::{io::AsyncWriteExt as _, task::JoinSet};

use crate::{locked::http_trusting, secured::Secured};

/// A number that looks random, from a seed that a failed run prints.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let count = u64::try_from(all.len()).unwrap();
        &all[usize::try_from(self.next() % count).unwrap()]
    }
}

/// What the attacker knows.
#[derive(Clone)]
struct Known {
    endpoints: Endpoints,
    token: String,
    /// Ids of builds of the other tenant, those to come too.
    ids: Arc<Mutex<Vec<BuildId>>>,
}

/// What the attacker got.
#[derive(Default)]
struct Loot {
    /// Subjects of messages that it received outside of its own inboxes.
    heard: Mutex<BTreeSet<String>>,
    /// What was answered to a request about the other tenant.
    answered: Mutex<Vec<String>>,
    tries: AtomicU64,
}

const VICTIM: &str = "victim";
/// Tries of the attacker against the other tenant and the farm itself; `{id}` is an id of a build of the other.
const SUBJECTS: [&str; 25] = [
    "forebay.build.request.victim.emergency",
    "forebay.build.request.victim.batch",
    "forebay.build.request.mallory.emergency",
    "forebay.build.event.victim.{id}.lifecycle",
    "forebay.build.event.victim.{id}.console",
    "forebay.build.live.victim.{id}.lifecycle",
    "forebay.api.get.victim",
    "forebay.api.list.victim",
    "forebay.api.events.victim",
    "forebay.api.cancel.victim",
    "forebay.api.create.victim",
    "forebay.worker.heartbeat",
    "forebay.worker.control.worker-1.0f",
    "forebay.worker.announce",
    "forebay.executor.heartbeat",
    "forebay.action.event.victim.{id}",
    "forebay.audit.refusal",
    "$KV.FOREBAY_LEASES.victim.{id}",
    "$KV.FOREBAY_QUOTA.group.victim",
    "$JS.API.STREAM.PURGE.FOREBAY_EVENTS",
    "$JS.API.STREAM.DELETE.FOREBAY_REQUESTS",
    "$JS.API.DIRECT.GET.FOREBAY_EVENTS",
    "$JS.API.DIRECT.GET.FOREBAY_EVENTS.forebay.build.event.victim.{id}.lifecycle",
    "$JS.API.CONSUMER.CREATE.FOREBAY_EVENTS.x",
    "$JS.ACK.FOREBAY_REQUESTS.enqueuer-batch.1.1.1.1.1",
];
const BODIES: [&str; 6] = [
    "",
    "{}",
    r#"{"id":"{id}"}"#,
    r#"{"command":["touch","/tmp/attacked"]}"#,
    r#"{"multi_last":["forebay.build.event.victim.*.lifecycle"]}"#,
    r#"{"stream_name":"FOREBAY_EVENTS","config":{"deliver_subject":"forebay.worker.control.worker-1.0f","ack_policy":"none"}}"#,
];
const SUBSCRIPTIONS: [&str; 8] = [
    ">",
    "forebay.>",
    "forebay.build.live.victim.>",
    "forebay.build.request.*.*",
    "_INBOX.>",
    "_INBOX_victim.ci.>",
    "$KV.>",
    "$JS.>",
];
const PATHS: [&str; 8] = [
    "/v1/builds/victim/{id}",
    "/v1/builds/victim/{id}/events",
    "/v1/builds/victim/{id}/log",
    "/v1/builds/victim",
    "/v1/builds/mallory/../victim/{id}",
    "/v1/builds/victim%2f{id}",
    "/v1/audit",
    "/builds/victim/{id}",
];

/// Attacks with a client library until it is stopped.
async fn attack(client: Client, known: Known, loot: Arc<Loot>, seed: u64) {
    let mut random = Random(seed);
    let authorities = &known.endpoints.operator.as_ref().unwrap().authorities;
    let http = http_trusting(&std::fs::read_to_string(authorities).unwrap());
    loop {
        loot.tries.fetch_add(1, Ordering::Relaxed);
        let id = known.ids.lock().last().copied().unwrap_or_else(BuildId::generate).to_string();
        let subject = random.of(&SUBJECTS).replace("{id}", &id);
        let body = Bytes::from(random.of(&BODIES).replace("{id}", &id));
        match random.next() % 6 {
            0 => {
                let reply = random.of(&SUBJECTS).replace("{id}", &id);
                client.publish_with_reply(subject, reply, body).await.unwrap();
            }
            1 => {
                if let Ok(answer) = client.request(subject.clone(), body).await {
                    let text = String::from_utf8_lossy(&answer.payload).into_owned();
                    // JetStream is not enabled for the account of a tenant.
                    if !text.contains("10039") {
                        loot.answered.lock().push(format!("{subject}: {text}"));
                    }
                }
            }
            2 => {
                let mut heard = client.subscribe(*random.of(&SUBSCRIPTIONS)).await.unwrap();
                let until = tokio::time::sleep(Duration::from_millis(50));
                let mut until = std::pin::pin!(until);
                while let Some(message) = tokio::select! { it = heard.next() => it, () = &mut until => None }
                {
                    loot.heard.lock().insert(message.subject.to_string());
                }
            }
            3 => {
                // The id of a build that the other tenant is about to publish.
                let mut headers = HeaderMap::new();
                headers.insert("Nats-Msg-Id", id.as_str());
                let own = "forebay.build.request.mallory.batch";
                let body = Bytes::from(r#"{"command":["true"]}"#);
                client.publish_with_headers(own, headers, body).await.unwrap();
            }
            4 => {
                let http_url = known.endpoints.http.as_deref().unwrap();
                let path = random.of(&PATHS).replace("{id}", &id);
                let asked = http.get(format!("{http_url}{path}")).bearer_auth(&known.token).send().await;
                if let Ok(answer) = asked
                    && answer.status().is_success()
                {
                    loot.answered.lock().push(format!("{path}: {}", answer.status()));
                }
            }
            _ => {
                let address = known.endpoints.nats.trim_start_matches("tls://");
                let mut raw = tokio::net::TcpStream::connect(address).await.unwrap();
                let lines: [&[u8]; 4] = [
                    b"CONNECT {}\r\nPING\r\n",
                    b"\x16\x03\x01\xff\xff\x01",
                    b"PUB > 99999999\r\n",
                    b"\r\n\r\n\0",
                ];
                // The server may close it at any time.
                let _ = raw.write_all(random.of::<&[u8]>(&lines)).await;
            }
        }
    }
}

/// Publishes an emergency build as the other tenant and returns the time until it started.
async fn emergency(client: &Client, ids: &Mutex<Vec<BuildId>>) -> (BuildId, Duration) {
    let id = BuildId::generate();
    ids.lock().push(id);
    let mut events = client.subscribe(format!("forebay.build.live.{VICTIM}.{id}.lifecycle")).await.unwrap();
    client.flush().await.unwrap();
    let began = Instant::now();
    let request = serde_json::json!({ "id": id, "command": ["true"] }).to_string();
    let subject = format!("forebay.build.request.{VICTIM}.{}", Priority::Emergency.as_str());
    client.publish(subject, request.into()).await.unwrap();
    let started = async {
        loop {
            let event: serde_json::Value =
                serde_json::from_slice(&events.next().await.unwrap().payload).unwrap();
            if event["event"] == "INVOCATION_STARTED" {
                return began.elapsed();
            }
        }
    };
    (id, tokio::time::timeout(farm::SOON, started).await.expect("the emergency starts"))
}

fn duration() -> Duration {
    if std::env::var("FOREBAY_CHAOS").is_ok_and(|form| form == "long") {
        let minutes = std::env::var("FOREBAY_CHAOS_MINUTES").ok().and_then(|text| text.parse().ok());
        return Duration::from_secs(60 * minutes.unwrap_or(10));
    }
    Duration::from_secs(5)
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_a_hostile_tenant_reads_nothing_writes_nothing_and_delays_no_build() {
    let mut farm = Secured::start(&["--workspaces", "2"]).await;
    let endpoints = farm.endpoints().await;
    farm.access(&["grant", "tenant", "mallory", "--group", "mallory", "--priority", "batch"]).await;
    farm.access(&["grant", "publisher", "mallory/ci"]).await;
    farm.add_tenant(VICTIM).await;
    let rights = r#"rights = ["read", "submit", "cancel", "execute", "cache-read", "blob-write"]"#;
    let token = farm.new_key("mallory", &format!("groups = [\"mallory\"]\n{rights}")).await;

    let (victim, mallory) = (farm.connect_as(VICTIM).await, farm.connect_as("mallory").await);
    let ids = Arc::new(Mutex::new(Vec::new()));
    let known = Known { endpoints: endpoints.clone(), token, ids: Arc::clone(&ids) };
    let (loot, mut attackers) = (Arc::new(Loot::default()), JoinSet::new());
    for seed in 1..=4 {
        attackers.spawn(attack(mallory.clone(), known.clone(), Arc::clone(&loot), seed * 0x9e37_79b9));
    }
    let (until, mut times) = (Instant::now() + duration(), Vec::new());
    while Instant::now() < until {
        times.push(emergency(&victim, &ids).await.1);
        assert!(attackers.try_join_next().is_none(), "an attacker ended");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    attackers.shutdown().await;

    let client = farm.up.client().await;
    let wanted: BTreeSet<BuildId> = ids.lock().iter().copied().collect();
    for id in &wanted {
        let key = BuildKey { group: VICTIM.parse().unwrap(), id: *id };
        let deadline = Instant::now() + farm::SOON;
        let outcome = loop {
            if let Some(result) = client.get(&key).await.unwrap().record.result() {
                break result.outcome;
            }
            assert!(Instant::now() < deadline, "{key} has not ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(outcome, Outcome::Succeeded, "{key}");
    }
    let request = model::ListRequest { limit: Some(1000), ..model::ListRequest::default() };
    let listed = client.builds(Some(&VICTIM.parse().unwrap()), &request).await.unwrap().builds;
    let listed: BTreeSet<BuildId> = listed.iter().map(|view| view.record.build.id).collect();
    assert!(wanted.len() > 1000 || listed == wanted, "the other tenant has builds that it did not publish");
    assert_eq!(*loot.answered.lock(), Vec::<String>::new());
    let foreign = |subject: &&String| subject.contains(VICTIM) || subject.starts_with("_INBOX_victim");
    let heard: Vec<String> = loot.heard.lock().iter().filter(foreign).cloned().collect();
    // What it published itself to such subjects stays in its own account, where it may hear it.
    let own: BTreeSet<String> =
        SUBJECTS.iter().map(|subject| subject.split("{id}").next().unwrap().to_owned()).collect();
    let stolen = heard.iter().filter(|subject| !own.iter().any(|start| subject.starts_with(start.as_str())));
    assert_eq!(stolen.collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(!std::path::Path::new("/tmp/attacked").exists());
    times.sort();
    let tries = loot.tries.load(Ordering::Relaxed);
    eprintln!("{} emergencies, slowest {:?}; {tries} tries", times.len(), times.last().unwrap());
    assert!(tries > 100 && times.len() > 5, "{tries} tries, {} emergencies", times.len());
}
