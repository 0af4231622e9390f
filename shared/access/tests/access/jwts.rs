//! What holds only where users have JWTs: their expiry, revocation without a reload, and what signs them.

use std::{
    collections::BTreeSet,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use access::{AccountName, Change, Finding, Rotation, Slot, Who, probe, push};
use async_nats::connection::State;
use credentials::{PemFiles, Seed, Server, UserKey, UserToken};
use farm::{Guard, Port, Process, SOON, tool};
use nkeys::KeyPair;
use serde_json::json;
use tokio::process::Command;

use crate::support::{
    Acks, Mode, User, World, changes, forged, next, now, publisher, tenant, user_token, watcher,
};

/// Time within which a revoked user is disconnected.
const REVOKED_WITHIN: Duration = Duration::from_secs(5);

async fn start() -> World {
    World::start_in(Mode::Jwt).await
}

pub(crate) async fn findings(world: &World) -> Vec<String> {
    let found = probe(&world.access, &world.seeds, &[world.url()], &PemFiles::default()).await;
    found.iter().map(|finding: &Finding| format!("{finding:?}")).collect()
}

pub(crate) fn names(names: &[&str]) -> BTreeSet<AccountName> {
    names.iter().map(|name| AccountName::try_from((*name).to_owned()).unwrap()).collect()
}

/// Waits until the server has closed the first connection of a user, who may have another one at once.
pub(crate) async fn is_closed(user: &User) {
    let deadline = Instant::now() + REVOKED_WITHIN;
    let connects = || user.client.statistics().connects.load(Ordering::Relaxed);
    while user.client.connection_state() == State::Connected && connects() == 1 {
        assert!(Instant::now() < deadline, "still connected");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn n1_expired_and_foreign_jwts_admit_to_nothing() {
    let world = start().await;
    let all = json!({ "pub": { "allow": [">"] }, "sub": { "allow": [">"] }, "subs": -1, "data": -1, "payload": -1 });
    let farm = world.account_seed("FARM");
    let connect = async |signer: &KeyPair, account: &KeyPair, expires: Option<i64>| {
        let seed = Seed::generate().unwrap();
        let token = user_token(signer, account, seed.public().as_str(), &all, expires);
        let key = UserKey { seed, token: Some(UserToken::new(token)) };
        world.try_connect(&key, "_INBOX").await
    };
    // The same forged JWT is valid with the account's own key: what follows is refused for the reason that it names.
    assert!(connect(&farm, &farm, None).await.is_ok());
    assert!(connect(&farm, &farm, Some(now() + 60)).await.is_ok());
    assert!(connect(&farm, &farm, Some(now() - 5)).await.is_err(), "expired");
    let stranger = KeyPair::new_account();
    assert!(connect(&stranger, &stranger, None).await.is_err(), "an unknown account");
    assert!(connect(&stranger, &farm, None).await.is_err(), "signed by a stranger");
    let tenant = world.account_seed("TENANT_a");
    assert!(connect(&tenant, &farm, None).await.is_err(), "signed by the account of a tenant");
    // A key that is limited to one role admits to no more, whatever the JWT says.
    let (key, inbox) = world.credentials("a/ci", Slot::Current);
    let other = world.credentials("b/ci", Slot::Current).0;
    let mixed = UserKey { seed: other.seed.clone(), token: key.token.clone() };
    assert!(world.try_connect(&mixed, &inbox).await.is_err(), "the JWT of another user");
    let bare = UserKey::from(key.seed.clone());
    assert!(world.try_connect(&bare, &inbox).await.is_err(), "without the JWT");
    // Users of a farm with another operator.
    let elsewhere = World::prepare_in(Acks::First, Mode::Jwt, &changes());
    let (key, inbox) = elsewhere.credentials("enqueuer/1", Slot::Current);
    assert!(world.try_connect(&key, &inbox).await.is_err(), "of another operator");
    let pushed = push(&elsewhere.access, &elsewhere.signer(), &Server::open(world.url()), now()).await;
    assert!(pushed.is_err(), "accounts of another operator");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_when_its_jwt_expires() {
    let world = start().await;
    let farm = world.account_seed("FARM");
    let seed = Seed::generate().unwrap();
    let all = json!({ "pub": { "allow": [">"] }, "sub": { "allow": [">"] }, "subs": -1, "data": -1, "payload": -1 });
    let token = user_token(&farm, &farm, seed.public().as_str(), &all, Some(now() + 2));
    let key = UserKey { seed, token: Some(UserToken::new(token)) };
    let user = world.try_connect(&key, "_INBOX").await.unwrap();
    is_closed(&user).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_is_added_without_a_reload_and_others_stay_connected() {
    let mut world = start().await;
    assert_eq!(findings(&world).await, Vec::<String>::new());
    assert_eq!(world.push().await, access::Pushed::default(), "nothing has changed");
    let (enqueuer, other) = (world.connect("enqueuer/1").await, world.connect("a/ci").await);
    for change in [tenant("c", &["c1"], &[], &["a1"]), publisher("c/ci", &[], &[]), watcher("c/eye", &[])] {
        world.change(&change);
    }
    let pushed = world.push().await;
    assert_eq!(pushed.updated, names(&["TENANT_c"]));
    assert_eq!(findings(&world).await, Vec::<String>::new());
    let ci = world.connect("c/ci").await;
    let mut live = ci.subscribe("forebay.build.live.c1.>").await;
    ci.stored("forebay.build.request.c1.batch", "{}").await;
    enqueuer.stored("forebay.build.event.c1.x.lifecycle", "queued").await;
    assert_eq!(next(&mut live).await.payload, "queued");
    for user in [&enqueuer, &other] {
        assert_eq!(user.client.statistics().connects.load(Ordering::Relaxed), 1);
    }
    // Its end closes its connections, and nothing of it is left.
    world.change(&Change::Revoke("c".parse().unwrap()));
    assert_eq!(world.push().await.closed.len(), 1);
    is_closed(&ci).await;
    other.stored("forebay.build.request.a1.batch", "{}").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_users_are_disconnected_within_five_seconds_and_stay_out() {
    let mut world = start().await;
    for name in ["a/ci", "worker/w-1"] {
        let (key, inbox) = world.credentials(name, Slot::Current);
        let user = world.try_connect(&key, &inbox).await.unwrap();
        let neighbour = world.connect(if name == "a/ci" { "a/nightly" } else { "worker/w-2" }).await;
        world.change(&Change::Revoke(name.parse().unwrap()));
        world.seeds.remove(&name.parse().unwrap()).unwrap();
        world.push().await;
        is_closed(&user).await;
        assert!(world.try_connect(&key, &inbox).await.is_err(), "{name}");
        assert_eq!(neighbour.client.connection_state(), State::Connected, "{name}");
        // A later user of the same name has another key, and does not make the old one valid.
        let again = if name == "a/ci" { publisher(name, &[], &[]) } else { crate::support::service(name) };
        world.change(&again);
        world.push().await;
        world.connect(name).await;
        assert!(world.try_connect(&key, &inbox).await.is_err(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_is_removed_from_the_file_by_hand_is_revoked() {
    let mut world = start().await;
    let (key, inbox) = world.credentials("worker/w-1", Slot::Current);
    let text = world.access.to_toml();
    let (before, after) = text.split_once("[[service]]\nrole = \"worker\"\nname = \"w-1\"\n").unwrap();
    let (_, rest) = after.split_once("\n\n").unwrap();
    world.access = access::Access::parse(&format!("{before}{rest}")).unwrap();
    world.push().await;
    assert!(world.try_connect(&key, &inbox).await.is_err());
    world.connect("worker/w-2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_an_older_configuration_does_not_admit_revoked_users() {
    let mut world = start().await;
    let path = world.folder.path().join("users.conf");
    let older = std::fs::read_to_string(&path).unwrap();
    let (key, inbox) = world.credentials("worker/w-1", Slot::Current);
    world.change(&Change::Revoke("worker/w-1".parse().unwrap()));
    world.push().await;
    assert!(world.try_connect(&key, &inbox).await.is_err());
    std::fs::write(&path, older).unwrap();
    world.restart_only().await;
    assert!(world.try_connect(&key, &inbox).await.is_err());
    world.connect("worker/w-2").await;
    // Tenants are there too, without another push.
    assert_eq!(findings(&world).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn both_keys_are_valid_during_a_rotation_and_only_the_new_one_after_it() {
    let mut world = start().await;
    for name in ["a/ci", "enqueuer/1"] {
        let who: Who = name.parse().unwrap();
        let (old, inbox) = world.credentials(name, Slot::Current);
        let user = world.try_connect(&old, &inbox).await.unwrap();
        world.change(&Change::Rotate(who.clone(), Rotation::Begin));
        world.push().await;
        let (new, _) = world.credentials(name, Slot::Next);
        for key in [&old, &new] {
            assert!(world.try_connect(key, &inbox).await.is_ok(), "{name}");
        }
        assert_eq!(user.client.connection_state(), State::Connected, "{name}");
        world.seeds.replace(&who).unwrap();
        world.change(&Change::Rotate(who, Rotation::Finish));
        world.push().await;
        is_closed(&user).await;
        assert!(world.try_connect(&old, &inbox).await.is_err(), "{name}");
        world.connect(name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_rights_need_no_new_jwt() {
    let mut world = start().await;
    let (key, inbox) = world.credentials("a/nightly", Slot::Current);
    let user = world.try_connect(&key, &inbox).await.unwrap();
    user.stored("forebay.build.request.a1.batch", "{}").await;
    world.change(&publisher("a/nightly", &["a2"], &["interactive"]));
    assert_eq!(world.push().await.updated, names(&["TENANT_a"]));
    is_closed(&user).await;
    let mut user = world.try_connect(&key, &inbox).await.unwrap();
    user.is_denied_publish("forebay.build.request.a1.batch").await;
    user.stored("forebay.build.request.a2.interactive", "{}").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n2_an_account_cannot_import_what_the_farm_gave_to_another() {
    let world = start().await;
    let (signer, server) = (world.signer(), Server::open(world.url()));
    let operator = world.account_seed("OPERATOR.signing");
    let (farm, thief) = (world.account_seed("FARM"), KeyPair::new_account());
    let subject = "forebay.build.request.a1.batch";
    let account = |import: serde_json::Value| {
        let limits = json!({ "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1, "wildcards": true });
        let nats = json!({ "type": "account", "version": 2, "limits": limits, "imports": [import] });
        forged(&operator, json!({ "iat": now(), "sub": thief.public_key(), "name": "thief", "nats": nats }))
    };
    let import = |token: Option<&str>| {
        let mut import =
            json!({ "name": "x", "subject": subject, "account": farm.public_key(), "type": "service" });
        if let Some(token) = token {
            import["token"] = token.into();
        }
        import
    };
    // The token that tenant a has for just this subject, and one that a stranger signed for this account.
    let (user, key) = world.monitor_of_accounts();
    let resolver = bus::Resolver::connect(&server, &user, key).await.unwrap();
    let of_a = resolver.account(&world.account_seed("TENANT_a").public_key()).await.unwrap();
    let claims: serde_json::Value = credentials::claims(&of_a).unwrap();
    let imports = claims["nats"]["imports"].as_array().unwrap();
    let stolen =
        imports.iter().find(|import| import["subject"] == subject).unwrap()["token"].as_str().unwrap();
    let activation = json!({ "type": "activation", "version": 2, "subject": subject, "kind": "service", "issuer_account": farm.public_key() });
    let activation = json!({ "sub": thief.public_key(), "name": subject, "nats": activation });
    let false_one = forged(&KeyPair::new_account(), activation.clone());
    let all = json!({ "pub": { "allow": [">"] }, "sub": { "allow": [">"] }, "subs": -1, "data": -1, "payload": -1 });
    let reaches = async |token: Option<&str>| {
        // A refused account stays as it was: without any import.
        let _ = resolver.update(&account(import(token))).await;
        let seed = Seed::generate().unwrap();
        let user = user_token(&thief, &thief, seed.public().as_str(), &all, None);
        let key = UserKey { seed, token: Some(UserToken::new(user)) };
        let user = world.try_connect(&key, "_INBOX").await.unwrap();
        user.client.request(subject, "{}".into()).await.is_ok()
    };
    assert!(!reaches(None).await, "without a token");
    assert!(!reaches(Some(stolen)).await, "with the token of another tenant");
    assert!(!reaches(Some(&false_one)).await, "with a token that the farm has not signed");
    // It is the token that matters: one that the farm has signed for this account opens the way.
    assert!(reaches(Some(&forged(&farm, activation))).await);
    // The next push closes what the description does not have, once.
    for wanted in [BTreeSet::from([thief.public_key()]), BTreeSet::new()] {
        let pushed = push(&world.access, &signer, &server, now()).await.unwrap();
        assert_eq!(pushed.closed, wanted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn n4_the_monitor_cannot_change_accounts() {
    let world = start().await;
    let mut monitor = world.connect("monitor/1").await;
    for subject in ["$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.DELETE", "$SYS.REQ.CLAIMS.LIST"] {
        monitor.is_denied_publish(subject).await;
    }
    // Nor is it possible for users of the farm or of tenants, whose accounts are not that of the servers.
    let careless = world.careless().await;
    careless.finds_none_at("$SYS.REQ.CLAIMS.LIST", "").await;
    world.connect("operator/1").await.is_denied_publish("$SYS.REQ.CLAIMS.UPDATE").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_jwt_is_used_at_the_next_connection() {
    let mut world = start().await;
    let who: Who = "gateway/1".parse().unwrap();
    let path = world.seeds.token_path(&who, Slot::Current);
    let credentials = credentials::Credentials { seed: Some(path.clone()), ..Default::default() };
    let before = std::fs::read_to_string(&path).unwrap();
    // One that lasts ends no connection, and is not written again.
    world.write();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
    // Its file has a JWT for two seconds; then the server ends the connection.
    let farm = world.account_seed("FARM");
    let (key, _) = world.credentials("gateway/1", Slot::Current);
    let permissions = json!({ "pub": { "allow": [">"] }, "sub": { "allow": [">"] }, "subs": -1, "data": -1, "payload": -1 });
    let short = user_token(&farm, &farm, key.seed.public().as_str(), &permissions, Some(now() + 2));
    let short = UserKey { seed: key.seed, token: Some(UserToken::new(short)) };
    std::fs::write(&path, short.reveal()).unwrap();
    let server = Server { url: world.url(), credentials };
    let bus = bus::Bus::connect(server, "gateway", bus::Patience::None).await.unwrap();
    let mut reconnects = bus.reconnects();
    world.write();
    assert_ne!(std::fs::read_to_string(&path).unwrap(), short.reveal(), "written again");
    tokio::time::timeout(SOON, reconnects.next()).await.expect("connected again");
    bus.settle().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_farm_keeps_its_streams_and_keys_when_its_users_get_jwts() {
    let mut world = World::start().await;
    let (before, _) = world.credentials("a/ci", Slot::Current);
    world.connect("a/ci").await.stored("forebay.build.request.a1.batch", "{}").await;
    world.give_jwts();
    world.restart().await;
    let (after, _) = world.credentials("a/ci", Slot::Current);
    assert_eq!(before.seed.public(), after.seed.public());
    world.connect("a/ci").await.stored("forebay.build.request.a1.batch", "{}").await;
    assert_eq!(world.connect("enqueuer/1").await.messages("FOREBAY_REQUESTS").await, 2);
    assert_eq!(findings(&world).await, Vec::<String>::new());
}

/// Starts a nats-server of a cluster with the users of the world, without JetStream.
async fn start_member(world: &World, name: &str, guard: &Guard, ports: [u16; 3]) -> Process {
    let folder = world.folder.path();
    let users = std::fs::read_to_string(folder.join("users.conf")).unwrap();
    // Each server has a folder of its own for accounts.
    let users = users.replace("/accounts\"", &format!("/accounts-{name}\""));
    let [client, own, other] = ports;
    let text = format!(
        "server_name: {name}\nlisten: \"127.0.0.1:{client}\"\n{users}cluster {{ name: test, listen: \"127.0.0.1:{own}\", routes: \
         [\"nats://127.0.0.1:{other}\"] }}\n"
    );
    let config = folder.join(format!("{name}.conf"));
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(tool("nats-server"));
    command.arg("--config").arg(&config);
    let process = Process::start(name, command, &folder.join(format!("{name}.log")), guard);
    let ready = async {
        while tokio::net::TcpStream::connect(("127.0.0.1", client)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, ready).await.unwrap();
    process
}

/// Waits until each of two servers has the accounts of the description.
async fn pushed_to_both(world: &mut World, servers: [&str; 2]) {
    world.write();
    let signer = world.signer();
    let mut changed = true;
    // The servers connect with each other after they have started.
    while changed {
        changed = false;
        for url in servers {
            let done = push(&world.access, &signer, &Server::open(url), now()).await.unwrap();
            changed |= done != access::Pushed::default();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_servers_of_a_cluster_have_changes_also_one_that_was_stopped() {
    let mut world = World::prepare_in(Acks::First, Mode::Jwt, &changes());
    let guard = Guard::start(world.folder.path());
    let ports = [Port::reserve(), Port::reserve(), Port::reserve(), Port::reserve()];
    let [a, b, a_routes, b_routes] = ports.each_ref().map(Port::number);
    let _first = start_member(&world, "a", &guard, [a, a_routes, b_routes]).await;
    let second = start_member(&world, "b", &guard, [b, b_routes, a_routes]).await;
    let (url_a, url_b) = (format!("nats://127.0.0.1:{a}"), format!("nats://127.0.0.1:{b}"));
    pushed_to_both(&mut world, [&url_a, &url_b]).await;
    // A tenant that one server was given reaches the farm on the other one.
    for change in [tenant("c", &["c1"], &[], &[]), watcher("c/eye", &[]), watcher("c/guest", &[])] {
        world.change(&change);
    }
    world.write();
    push(&world.access, &world.signer(), &Server::open(&url_a), now()).await.unwrap();
    let (eye, inbox) = world.credentials("c/eye", Slot::Current);
    let watching = world.try_connect_to(&url_b, &eye, &inbox).await.unwrap();
    let mut refused = watching.subscribe("forebay.build.rejected.c1").await;
    let (enqueuer, own) = world.credentials("enqueuer/1", Slot::Current);
    let enqueuer = world.try_connect_to(&url_a, &enqueuer, &own).await.unwrap();
    let heard = async {
        // Interest in a subject crosses between servers in the background.
        loop {
            enqueuer.client.publish("forebay.build.rejected.c1", "refused".into()).await.unwrap();
            if tokio::time::timeout(Duration::from_millis(100), next(&mut refused)).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(SOON, heard).await.expect("a message of the farm");
    // Revoked at one server, disconnected from the other one.
    let (guest, guests) = world.credentials("c/guest", Slot::Current);
    world.change(&Change::Revoke("c/eye".parse().unwrap()));
    world.write();
    push(&world.access, &world.signer(), &Server::open(&url_a), now()).await.unwrap();
    is_closed(&watching).await;
    // Nor does a server admit the users of a tenant that ended while it was stopped, or give the tenant back to the others.
    drop(second);
    world.change(&Change::Revoke("c".parse().unwrap()));
    world.write();
    push(&world.access, &world.signer(), &Server::open(&url_a), now()).await.unwrap();
    let _second = start_member(&world, "b", &guard, [b, b_routes, a_routes]).await;
    let ended = async {
        while world.try_connect_to(&url_b, &guest, &guests).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(SOON * 2, ended).await.expect("the server learns that the tenant has ended");
    assert!(world.try_connect_to(&url_a, &guest, &guests).await.is_err());
    assert!(world.try_connect_to(&url_b, &eye, &inbox).await.is_err());
}
