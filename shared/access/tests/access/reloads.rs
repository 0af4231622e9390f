//! Changes while nats-server runs.

use access::{Change, Finding, Rotation, Slot, Who, probe, reload};
use credentials::{Credentials, PemFiles, Server};

use crate::support::{Acks, World, changes, publisher, tenant, watcher};

fn monitor(world: &World) -> Server {
    let who = Who::Service("monitor/1".parse().unwrap());
    let seed = Some(world.seeds.path(&who, Slot::Current));
    Server { url: world.url(), credentials: Credentials { seed, tls: PemFiles::default() } }
}

async fn findings(world: &World) -> Vec<String> {
    let found = probe(&world.access, &world.seeds, &[world.url()], &PemFiles::default()).await;
    found.iter().map(|finding: &Finding| format!("{finding:?}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_is_added_while_the_server_runs_reaches_the_farm() {
    let mut world = World::start().await;
    assert_eq!(findings(&world).await, Vec::<String>::new());
    for change in
        [tenant("c", &["c1"], &["batch"], &["a1"]), publisher("c/ci", &[], &[]), watcher("c/eye", &[])]
    {
        world.change(&change);
    }
    world.write();
    let before = findings(&world).await;
    assert!(before.len() == 2 && before.iter().all(|text| text.contains("Connect")), "{before:?}");
    reload(&[world.pid()], &monitor(&world)).await.unwrap();
    assert_eq!(findings(&world).await, Vec::<String>::new());
    let ci = world.connect("c/ci").await;
    ci.stored("forebay.build.request.c1.batch", "{}").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_whose_account_is_not_connected_is_found() {
    let mut world = World::start().await;
    // The farm exports nothing, as after a reload that lost the imports.
    let path = world.folder.path().join("users.conf");
    let text = std::fs::read_to_string(&path).unwrap();
    let lines = text.lines().filter(|line| !line.contains("service: {") && !line.contains("service: \""));
    std::fs::write(&path, lines.collect::<Vec<_>>().join("\n")).unwrap();
    world.restart().await;
    let found = findings(&world).await;
    assert_eq!(found.len(), 5, "{found:?}");
    assert!(found.iter().all(|text| text.contains("NotConnected")), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_is_revoked_is_disconnected() {
    let mut world = World::start().await;
    let (seed, inbox) = world.credentials("a/ci", Slot::Current);
    let other = world.connect("a/nightly").await;
    world.change(&Change::Revoke("a/ci".parse().unwrap()));
    world.write();
    reload(&[world.pid()], &monitor(&world)).await.unwrap();
    assert!(world.try_connect(&seed, &inbox).await.is_err());
    other.stored("forebay.build.request.a1.batch", "{}").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_keys_are_valid_during_a_rotation_and_only_the_new_one_after_it() {
    let mut world = World::start().await;
    for name in ["a/ci", "enqueuer/1"] {
        let (old, inbox) = world.credentials(name, Slot::Current);
        world.change(&Change::Rotate(name.parse().unwrap(), Rotation::Begin));
        world.write();
        reload(&[world.pid()], &monitor(&world)).await.unwrap();
        let (new, _) = world.credentials(name, Slot::Next);
        assert!(world.try_connect(&old, &inbox).await.is_ok(), "{name}");
        assert!(world.try_connect(&new, &inbox).await.is_ok(), "{name}");
        world.seeds.replace(&name.parse().unwrap()).unwrap();
        world.change(&Change::Rotate(name.parse().unwrap(), Rotation::Finish));
        world.write();
        reload(&[world.pid()], &monitor(&world)).await.unwrap();
        assert!(world.try_connect(&old, &inbox).await.is_err(), "{name}");
        world.connect(name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_without_a_server_fails() {
    let world = World::prepare(Acks::First, &changes());
    let error = reload(&[0], &monitor(&world)).await.unwrap_err();
    assert_eq!(error.to_string(), "0 is not the id of a process");
}
