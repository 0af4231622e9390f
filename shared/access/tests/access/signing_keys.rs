//! The replacement of the keys with which accounts sign their users.

use std::{fs, sync::atomic::Ordering};

use access::{
    AccountName, Change, SigningFault,
    SigningStep::{self, Begin, Cancel, Finish},
    Slot,
};

use crate::{
    jwts::{findings, is_closed, names},
    support::{Mode, User, World, publisher},
};

impl World {
    /// Makes a step of the replacement, as `forebay access rotate --signing-key` does.
    fn rotate_signing(&mut self, account: &AccountName, step: SigningStep) -> Result<(), SigningFault> {
        self.access = self.seeds.rotate_signing(&self.access, account, step)?.0;
        self.seeds.settle_signing(&self.access, account)
    }
}

/// Number of times that the client of a user connected.
fn connects(user: &User) -> u64 {
    user.client.statistics().connects.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signing_key_is_replaced_while_users_are_connected_and_the_old_one_admits_no_more() {
    let mut world = World::start_in(Mode::Jwt).await;
    for (account, name, other) in
        [("TENANT_a", "a/ci", "b/ci"), ("FARM", "enqueuer/1", "a/ci"), ("SYS", "monitor/1", "enqueuer/1")]
    {
        let account: AccountName = account.parse().unwrap();
        let (old, inbox) = world.credentials(name, Slot::Current);
        let user = world.try_connect(&old, &inbox).await.unwrap();
        let neighbour = world.connect(other).await;
        world.rotate_signing(&account, Begin).unwrap();
        // Without servers that know the new key, its users would be out.
        let early = world.rotate_signing(&account, Finish);
        assert!(matches!(early, Err(SigningFault::NotUsed(_))), "{early:?}");
        let pushed = world.push().await.updated;
        assert!(pushed.contains(&account), "{pushed:?}");
        let (new, _) = world.credentials(name, Slot::Current);
        assert_eq!(old.seed.public(), new.seed.public());
        assert_ne!(old.reveal(), new.reveal(), "the file of {name} has a JWT of the new key");
        for key in [&old, &new] {
            world.try_connect(key, &inbox).await.unwrap();
        }
        assert_eq!((connects(&user), connects(&neighbour)), (1, 1), "no user was disconnected");
        world.rotate_signing(&account, Finish).unwrap();
        world.push().await;
        is_closed(&user).await;
        assert!(world.try_connect(&old, &inbox).await.is_err(), "{name}");
        world.try_connect(&new, &inbox).await.unwrap();
        assert_eq!(connects(&neighbour), 1, "{other}");
        assert_eq!(findings(&world).await, Vec::<String>::new());
        // Nothing is left to change, and repeated steps change nothing.
        world.rotate_signing(&account, Finish).unwrap();
        assert_eq!(world.push().await, access::Pushed::default());
    }
    let ci = world.connect("a/ci").await;
    ci.stored("forebay.build.request.a1.batch", "{}").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_push_users_keep_jwts_that_servers_know() {
    let mut world = World::start_in(Mode::Jwt).await;
    let account = "TENANT_a".parse().unwrap();
    world.rotate_signing(&account, Begin).unwrap();
    world.change(&publisher("a/later", &[], &[]));
    // As `forebay access apply` without --push.
    let before = world.credentials("a/ci", Slot::Current).0.reveal();
    world.write();
    assert_eq!(world.credentials("a/ci", Slot::Current).0.reveal(), before);
    world.connect("a/ci").await;
    assert_eq!(world.push().await.updated, names(&["TENANT_a"]));
    world.connect("a/later").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_that_are_added_after_the_push_have_jwts_of_the_new_key() {
    let mut world = World::start_in(Mode::Jwt).await;
    let account: AccountName = "TENANT_a".parse().unwrap();
    world.rotate_signing(&account, Begin).unwrap();
    world.push().await;
    world.change(&publisher("a/later", &[], &[]));
    // Without --push: the servers learn of the user later.
    world.write();
    let (later, inbox) = world.credentials("a/later", Slot::Current);
    world.push().await;
    assert_eq!(world.credentials("a/later", Slot::Current).0.reveal(), later.reveal());
    world.rotate_signing(&account, Finish).unwrap();
    world.push().await;
    world.try_connect(&later, &inbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_whose_seed_is_elsewhere_is_not_locked_out() {
    let mut world = World::start_in(Mode::Jwt).await;
    let account: AccountName = "TENANT_a".parse().unwrap();
    let who = "a/nightly".parse().unwrap();
    let (key, inbox) = world.credentials("a/nightly", Slot::Current);
    world.seeds.remove(&who).unwrap();
    world.rotate_signing(&account, Begin).unwrap();
    world.push().await;
    let refused = world.rotate_signing(&account, Finish);
    assert!(matches!(refused, Err(SigningFault::NotUsed(_))), "{refused:?}");
    // The replacement can be given up: all are as before.
    world.rotate_signing(&account, Cancel).unwrap();
    assert!(!world.folder.path().join("seeds/TENANT_a.signing.next.nk").exists());
    world.push().await;
    world.try_connect(&key, &inbox).await.unwrap();
    world.connect("a/ci").await;
    world.change(&Change::Revoke(who));
    world.rotate_signing(&account, Begin).unwrap();
    world.push().await;
    world.rotate_signing(&account, Finish).unwrap();
    world.push().await;
    world.connect("a/ci").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_reach_the_farm_while_its_signing_key_is_finished() {
    let mut world = World::start_in(Mode::Jwt).await;
    let farm: AccountName = "FARM".parse().unwrap();
    world.rotate_signing(&farm, Begin).unwrap();
    let all = world.push().await.updated;
    assert_eq!(all, names(&["FARM", "TENANT_a", "TENANT_b"]));
    world.rotate_signing(&farm, Finish).unwrap();
    // Nothing of a tenant depends on the old key of the farm any more.
    assert_eq!(world.push().await.updated, names(&["FARM"]));
    assert_eq!(findings(&world).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_replacement_that_is_killed_between_its_files_goes_on() {
    let mut world = World::start_in(Mode::Jwt).await;
    let account: AccountName = "TENANT_a".parse().unwrap();
    let file = |name: &str| world.folder.path().join(format!("seeds/TENANT_a.signing{name}.nk"));
    let (current, next) = (file(""), file(".next"));
    let read = |path: &std::path::Path| fs::read_to_string(path).unwrap();
    world.seeds.rotate_signing(&world.access, &account, Begin).unwrap();
    let lost = read(&next);
    // Killed before the description had the key: nothing knows it, and another one is made.
    world.access = world.seeds.rotate_signing(&world.access, &account, Begin).unwrap().0;
    let key = read(&next);
    assert_ne!(key, lost);
    world.push().await;
    // Killed before the file of the old key was replaced.
    world.access = world.seeds.rotate_signing(&world.access, &account, Finish).unwrap().0;
    world.push().await;
    world.connect("a/ci").await;
    assert_ne!(read(&current), key);
    world.rotate_signing(&account, Begin).unwrap();
    assert_eq!(read(&current), key);
    assert_ne!(read(&next), key);
    // The keys of a tenant end with it.
    for tenant in ["b", "a"] {
        world.change(&Change::Revoke(tenant.parse().unwrap()));
    }
    assert!(!current.exists() && !next.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_new_key_a_replacement_does_not_finish_and_changes_nothing() {
    let mut world = World::start_in(Mode::Jwt).await;
    let account: AccountName = "TENANT_a".parse().unwrap();
    let file = |name: &str| world.folder.path().join(format!("seeds/TENANT_a.signing{name}.nk"));
    let (current, next, away) = (file(""), file(".next"), file(".away"));
    world.rotate_signing(&account, Begin).unwrap();
    world.push().await;
    let keys = || (fs::read_to_string(&current).ok(), fs::read_to_string(&next).ok());
    // It is lost, or it is that of another account.
    fs::rename(&next, &away).unwrap();
    let refused = world.rotate_signing(&account, Finish);
    assert!(matches!(refused, Err(SigningFault::Missing { .. })), "{refused:?}");
    fs::copy(world.folder.path().join("seeds/FARM.signing.nk"), &next).unwrap();
    let before = keys();
    let refused = world.rotate_signing(&account, Finish);
    assert!(matches!(refused, Err(SigningFault::Other { .. })), "{refused:?}");
    assert_eq!(keys(), before);
    // Each in the file of the other.
    fs::rename(&current, &next).unwrap();
    fs::rename(&away, &current).unwrap();
    world.rotate_signing(&account, Finish).unwrap();
    assert!(!next.exists());
    world.push().await;
    world.connect("a/ci").await;
    // A folder that does not have the key of the account is another one.
    fs::rename(&current, &away).unwrap();
    let refused = world.rotate_signing(&account, Begin);
    assert!(matches!(refused, Err(SigningFault::Missing { .. })) && !next.exists(), "{refused:?}");
}
