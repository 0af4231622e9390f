//! What holds for every description.

use access::Access;
use proptest::prelude::{prop_assert, proptest};

use crate::support::{World, publisher, tenant, watcher};

const GROUPS: [&str; 6] = ["g0", "g1", "g2", "g3", "g4", "g5"];
const PRIORITIES: [&str; 4] = ["emergency", "interactive", "automated", "batch"];

/// The groups whose bit is set.
fn pick<'a>(from: &[&'a str], bits: u8) -> Vec<&'a str> {
    from.iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0).map(|(_, name)| *name).collect()
}

proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(64))]

    #[test]
    fn tenants_reach_only_their_groups_and_those_that_they_watch(
        owned in 1..63_u8, priorities in 1..15_u8, watched in 0..64_u8, part in 0..64_u8,
    ) {
        let (first, second) = (pick(&GROUPS, owned), pick(&GROUPS, !owned));
        let watches = pick(&second, watched);
        let mut some = pick(&first, part);
        some.truncate(3);
        let all = [
            tenant("one", &first, &pick(&PRIORITIES, priorities), &[]),
            tenant("two", &second, &[], &[]),
            tenant("one", &[], &[], &watches),
            publisher("one/p", &some, &[]),
            watcher("one/w", &[]),
            publisher("two/p", &[], &[]),
            watcher("two/w", &[]),
        ];
        let access = World::describe(&all);
        let groups_of = |access: &Access, tenant: &str| {
            let found = access.users().into_iter().filter(|user| user.name.tenant.as_str() == tenant);
            let crossings = found.flat_map(|user| user.crossings.into_iter());
            crossings.map(|crossing| (crossing.to_string(), crossing.group().to_string())).collect::<Vec<_>>()
        };
        for (subject, group) in groups_of(&access, "one") {
            let own = first.contains(&group.as_str());
            prop_assert!(own || watches.contains(&group.as_str()), "{}", subject);
            // What is only watched is not written to.
            prop_assert!(own || !subject.contains(".request.") && !subject.contains(".create."), "{}", subject);
            prop_assert!(subject.split('.').any(|token| token == group), "{} of {}", subject, group);
        }
        for (subject, group) in groups_of(&access, "two") {
            prop_assert!(second.contains(&group.as_str()), "{}", subject);
        }
        for user in access.users() {
            let account = &access.tenants()[&user.name.tenant].crossings();
            prop_assert!(user.crossings.is_subset(account), "{}", user.name);
            let rights = user.rights();
            for other in GROUPS.iter().filter(|group| !user.crossings.iter().any(|one| one.group().as_str() == **group)) {
                let named = |filter: &&String| filter.split('.').any(|token| token == *other || token == "*");
                let found: Vec<_> = rights.publish().iter().chain(rights.subscribe()).filter(named).collect();
                prop_assert!(found.is_empty(), "{}: {:?}", user.name, found);
            }
        }
        // Its lines name all of it, and nothing else of the farm.
        prop_assert!(Access::parse(&access.to_toml()).unwrap() == access);
    }
}

#[test]
fn the_call_that_names_a_priority_in_its_body_needs_all_of_them() {
    let all = [
        tenant("one", &["g"], &["batch"], &[]),
        publisher("one/p", &[], &[]),
        tenant("two", &["h"], &[], &[]),
        publisher("two/p", &[], &[]),
        publisher("two/q", &[], &["batch", "automated"]),
    ];
    let access = World::describe(&all);
    let may_create: Vec<String> = access
        .users()
        .into_iter()
        .filter(|user| user.crossings.iter().any(|crossing| crossing.to_string().contains(".create.")))
        .map(|user| user.name.to_string())
        .collect();
    assert_eq!(may_create, ["two/p"]);
}
