//! The description as a file, and the files of seeds.

use std::os::unix::fs::PermissionsExt as _;

use access::{Access, Change, ChangeError, Rotation, Slot, Who};
use credentials::{Seed, SeedFault};

use crate::support::{Acks, World, changes, publisher, service, tenant, watcher};

fn key() -> String {
    Seed::generate().unwrap().public().to_string()
}

#[test]
fn a_description_is_read_as_it_was_written_and_has_no_seed() {
    let mut world = World::prepare(Acks::First, &changes());
    world.change(&Change::Rotate("a/ci".parse().unwrap(), Rotation::Begin));
    world.change(&Change::Rotate("gateway/1".parse().unwrap(), Rotation::Begin));
    let text = world.access.to_toml();
    assert_eq!(Access::parse(&text).unwrap(), world.access);
    for generated in [text, access::nats_config(&world.access), access::redis_acl(&world.access)] {
        for (who, _) in world.access.key_owners() {
            let seed = world.seeds.read(&who, Slot::Current).unwrap().unwrap();
            assert!(!generated.contains(seed.reveal()) && !generated.contains(&seed.redis_password()));
        }
    }
}

#[test]
fn what_is_wrong_in_a_description_is_named_with_its_place() {
    let (one, two) = (key(), key());
    let seed = Seed::generate().unwrap().reveal().to_owned();
    let tenant = "[[tenant]]\nname = \"a\"\ngroups = [\"g\"]\npriorities = [\"batch\"]\n";
    let with = |more: &str| format!("version = 1\n{tenant}{more}");
    for (text, wanted) in [
        (String::new(), vec!["version"]),
        ("version = 2\n".to_owned(), vec!["version 2", "later version"]),
        ("version = 1\ncolour = 1\n".to_owned(), vec!["line 2", "colour"]),
        (with("color = 1\n"), vec!["line 6", "color"]),
        (with(tenant), vec!["tenant a", "twice"]),
        (with(&tenant.replace("\"a\"", "\"b\"")), vec!["group g", "tenant a", "tenant b", "watches"]),
        (
            "version = 1\n[[tenant]]\nname = \"worker\"\ngroups = []\npriorities = []\n".to_owned(),
            vec!["line 3", "role"],
        ),
        (
            "version = 1\n[[tenant]]\nname = \"a\"\ngroups = []\npriorities = [\"batch\"]\n".to_owned(),
            vec!["no groups"],
        ),
        (
            "version = 1\n[[tenant]]\nname = \"a\"\ngroups = [\"a.b\"]\npriorities = []\n".to_owned(),
            vec!["line 4", "a.b"],
        ),
        (
            "version = 1\n[[tenant]]\nname = \"a\"\ngroups = [\"g\"]\npriorities = [\"now\"]\n".to_owned(),
            vec!["line 5", "now"],
        ),
        (with("watches = [\"h\"]\n"), vec!["watches group h", "no other tenant"]),
        (with("[[tenant.publisher]]\nname = \"ci\"\nkeys = []\n"), vec!["line 8", "no key"]),
        (
            with(&format!("[[tenant.publisher]]\nname = \"ci\"\nkeys = [\"{seed}\"]\n")),
            vec!["line 8", "seed"],
        ),
        (
            with(&format!("[[tenant.publisher]]\nname = \"ci\"\ngroups = [\"h\"]\nkeys = [\"{one}\"]\n")),
            vec!["a/ci", "group h"],
        ),
        (
            with(&format!(
                "[[tenant.publisher]]\nname = \"ci\"\npriorities = [\"emergency\"]\nkeys = [\"{one}\"]\n"
            )),
            vec!["a/ci", "emergency"],
        ),
        (
            with(&format!(
                "[[tenant.watcher]]\nname = \"ci\"\npriorities = [\"batch\"]\nkeys = [\"{one}\"]\n"
            )),
            vec!["line 8", "priorities"],
        ),
        (
            with(&format!(
                "[[tenant.watcher]]\nname = \"x\"\nkeys = [\"{one}\"]\n[[tenant.watcher]]\nname = \"y\"\nkeys = [\"{one}\"]\n"
            )),
            vec!["a/x", "a/y", "same key"],
        ),
        (
            with(&format!("[[tenant.watcher]]\nname = \"x\"\nkeys = [\"{one}\", \"{two}\", \"{one}\"]\n")),
            vec!["3 keys"],
        ),
        (
            format!("version = 1\n[[service]]\nrole = \"cook\"\nname = \"1\"\nkeys = [\"{one}\"]\n"),
            vec!["line 2", "cook", "enqueuer"],
        ),
        (
            format!("version = 1\n[[service]]\nrole = \"enqueuer\"\nname = \"1\"\nkeys = [\"{one}\"]\n"),
            vec!["enqueuer/1", "Redis"],
        ),
    ] {
        let error = Access::parse(&text).unwrap_err().to_string();
        for part in wanted {
            assert!(error.contains(part), "{text}\n{error}");
        }
        assert!(!error.contains(&seed), "a secret is repeated: {error}");
    }
}

#[test]
fn a_change_that_is_repeated_has_no_effect() {
    let mut world = World::prepare(Acks::First, &changes());
    let before = world.access.clone();
    for change in changes() {
        world.change(&change);
    }
    assert_eq!(world.access, before);
    let gone = Change::Revoke("a/nightly".parse().unwrap());
    world.change(&gone);
    let after = world.access.clone();
    assert_ne!(after, before);
    world.change(&gone);
    assert_eq!(world.access, after);
}

#[test]
fn changes_that_are_not_possible_say_why() {
    let world = World::prepare(Acks::First, &changes());
    let refused = |change: &Change| {
        let no_key = |_: &Who, _: Slot| -> Result<Seed, SeedFault> { Ok(Seed::generate()?) };
        let error: ChangeError = world.access.changed(change, no_key).unwrap_err();
        error.to_string()
    };
    for (change, wanted) in [
        (publisher("z/ci", &[], &[]), "tenant z does not exist"),
        (publisher("b/ci", &["a1"], &[]), "group a1"),
        (publisher("b/ci", &["a2"], &[]), "group a2"),
        (publisher("b/ci", &[], &["emergency"]), "priority emergency"),
        (watcher("b/ci", &[]), "publisher and a watcher"),
        (watcher("b/dashboard", &["a1"]), "group a1"),
        (tenant("b", &["a1"], &[], &[]), "belongs to tenant a"),
        (tenant("d", &[], &[], &[]), "--group"),
        (Change::Rotate("a/none".parse().unwrap(), Rotation::Begin), "does not exist"),
        (Change::Rotate("a".parse().unwrap(), Rotation::Begin), "name one of them"),
        (Change::Rotate("worker/w-9".parse().unwrap(), Rotation::Finish), "does not exist"),
    ] {
        let error = refused(&change);
        assert!(error.contains(wanted), "{change:?}: {error}");
    }
}

#[test]
fn seeds_are_private_and_never_replaced() {
    let mut world = World::prepare(Acks::First, &[service("enqueuer/1")]);
    let who: Who = "enqueuer/1".parse().unwrap();
    let path = world.seeds.path(&who, Slot::Current);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(path.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let seed = world.seeds.read(&who, Slot::Current).unwrap().unwrap();
    let other = Seed::generate().unwrap();
    assert!(world.seeds.write(&who, Slot::Current, &other).is_err());
    assert_eq!(world.seeds.read(&who, Slot::Current).unwrap().unwrap().public(), seed.public());
    // Others could have read it.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = world.seeds.read(&who, Slot::Current).unwrap_err().to_string();
    assert!(error.contains("chmod 600") && error.contains("rotate"), "{error}");
    world.seeds.remove(&who).unwrap();
    assert!(world.seeds.read(&who, Slot::Current).unwrap().is_none());
    world.change(&Change::Revoke(who));
}
