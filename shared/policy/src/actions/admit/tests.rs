use model::{PoolName, Resources};
use proptest::prelude::*;

use super::*;

/// The pool that is preferred for an action that is admitted while all pools have live executors.
fn admit(platform: &[RequestedProperty], needs: &Needs, pools: &[Pool]) -> Result<PoolName, AdmitError> {
    let offers = Offers { present: pools.to_vec(), departed: Vec::new() };
    let requirements = super::admit(platform, needs, &offers)?;
    Ok(preferred_pool(&requirements, needs, pools).unwrap().name.clone())
}

fn pool(name: &str, properties: &[(&str, &[&str])]) -> Pool {
    let owned = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    Pool {
        name: name.parse().unwrap(),
        properties: properties.iter().map(|(name, values)| ((*name).to_owned(), owned(values))).collect(),
        root_is_input: false,
        capacity: Resources::default(),
        executor_type: model::ExecutorType::x86(),
    }
}

/// A `pool` whose largest executor has these resources.
fn sized(name: &str, cpu_millis: u64, memory_bytes: u64, custom: &[(&str, u32)]) -> Pool {
    let custom = custom.iter().map(|(name, count)| (name.parse().unwrap(), Amount::whole(*count)));
    let capacity = Resources { custom: custom.collect(), ..Resources::new(cpu_millis, memory_bytes) };
    Pool { capacity, ..pool(name, &[]) }
}

fn needs(cpu_millis: Option<u64>, memory_bytes: Option<u64>, custom: &[(&str, &str)]) -> Needs {
    let custom = custom.iter().map(|(name, amount)| (name.parse().unwrap(), amount.parse().unwrap()));
    Needs { cpu_millis, memory_bytes, custom: custom.collect(), ..Needs::default() }
}

fn ask(pairs: &[(&str, &str)]) -> Vec<RequestedProperty> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn farm() -> Vec<Pool> {
    vec![
        pool("gpu", &[("OSFamily", &["linux"]), ("Arch", &["x86_64"]), ("gpu", &["a100", "h100"])]),
        pool("default", &[("OSFamily", &["linux"]), ("ISA", &["x86-64", "avx2"])]),
        pool("mac", &[("OSFamily", &["macos"])]),
    ]
}

fn admitted(pairs: &[(&str, &str)]) -> String {
    admit(&ask(pairs), &Needs::default(), &farm()).unwrap().to_string()
}

fn refused(pairs: &[(&str, &str)]) -> Refusal {
    match admit(&ask(pairs), &Needs::default(), &farm()) {
        Err(AdmitError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_asked_goes_to_the_default_pool_else_to_the_plainest() {
    assert_eq!(admitted(&[]), "default");
    let pools = [pool("b", &[("x", &["1"])]), pool("c", &[]), pool("a", &[])];
    assert_eq!(admit(&[], &Needs::default(), &pools).unwrap().as_str(), "a");
}

#[test]
fn of_several_the_plainest_wins() {
    assert_eq!(admitted(&[("OSFamily", "linux")]), "default");
    assert_eq!(admitted(&[("OSFamily", "linux"), ("gpu", "h100")]), "gpu");
}

fn rooted(name: &str, properties: &[(&str, &[&str])]) -> Pool {
    Pool { root_is_input: true, ..pool(name, properties) }
}

/// The preferred pool of a client that asks for `pairs`, with live executors in the pools `live`.
fn among(pools: &[Pool], pairs: &[(&str, &str)], live: &[&str]) -> Result<String, AdmitError> {
    let (present, departed) = pools.iter().cloned().partition(|pool| live.contains(&pool.name.as_str()));
    let requirements = super::admit(&ask(pairs), &Needs::default(), &Offers { present, departed })?;
    Ok(preferred_pool(&requirements, &Needs::default(), pools).unwrap().name.to_string())
}

#[test]
fn of_pools_that_offer_the_same_the_default_one_is_preferred_then_the_first_by_name() {
    let linux: &[(&str, &[&str])] = &[("OSFamily", &["linux"])];
    let pools = [pool("default", linux), pool("b", linux), pool("a", linux)];
    let asked = [("OSFamily", "linux")];
    assert_eq!(among(&pools, &asked, &["a"]).unwrap(), "default");
    assert_eq!(among(&pools[1..], &asked, &["b"]).unwrap(), "a");
}

#[test]
fn what_only_a_departed_executor_offered_waits_but_is_not_on_offer() {
    let pools = [pool("default", &[("gpu", &["a100"])]), pool("old", &[("gpu", &["k80"])])];
    assert_eq!(among(&pools, &[("gpu", "k80")], &["default"]).unwrap(), "old");
    let Err(AdmitError::Refused(refusal)) = among(&pools, &[("gpu", "h100")], &["default"]) else {
        panic!("no pool ever offered it")
    };
    assert_eq!(refusal.offered, ["a100"]);
}

#[test]
fn the_input_root_is_slash_only_for_who_asks() {
    let linux: &[(&str, &[&str])] = &[("OSFamily", &["linux"])];
    let pools = [rooted("buildstream", linux), pool("default", linux)];
    let name = |pairs: &[(&str, &str)], live: &[&str]| among(&pools, pairs, live).unwrap();
    let bazel = [("OSFamily", "linux")];
    assert_eq!(name(&bazel, &["buildstream", "default"]), "default");
    assert_eq!(name(&bazel, &["buildstream"]), "default", "it waits rather than fail");
    assert_eq!(name(&[("Pool", "buildstream"), bazel[0]], &[]), "buildstream");
    // A property that no other pool offers asks for it too, and so does any property if there is no other pool.
    let own = [rooted("buildstream", &[("OSFamily", &["linux"]), ("for", &["bst"])]), pools[1].clone()];
    assert_eq!(among(&own, &[("for", "bst"), bazel[0]], &[]).unwrap(), "buildstream");
    assert_eq!(among(&own[..1], &bazel, &[]).unwrap(), "buildstream");
    let Err(AdmitError::Refused(refusal)) = among(&own[..1], &[], &[]) else {
        panic!("it asked for nothing")
    };
    assert_eq!(
        (refusal.property.as_str(), refusal.offered.as_slice()),
        ("Pool", &["buildstream".to_owned()][..])
    );
}

#[test]
fn case_matters_only_where_it_should() {
    assert_eq!(admitted(&[("OSFamily", "Linux")]), "default");
    assert_eq!(admitted(&[("Pool", "GPU")]), "gpu");
    assert_eq!(refused(&[("gpu", "H100")]).offered, ["a100", "h100"]);
}

#[test]
fn repeated_names_are_all_asked_for() {
    assert_eq!(admitted(&[("ISA", "x86-64"), ("ISA", "AVX2")]), "default");
    let refusal = refused(&[("ISA", "x86-64"), ("ISA", "avx512")]);
    assert_eq!((refusal.property.as_str(), refusal.value.as_str()), ("ISA", "avx512"));
}

#[test]
fn an_unknown_name_is_named_with_the_known_ones() {
    let refusal = refused(&[("OSFamily", "linux"), ("container-image", "x")]);
    assert_eq!(refusal.property, "container-image");
    assert_eq!(refusal.offered, ["Arch", "ISA", "OSFamily", "Pool", "gpu"]);
    assert_eq!(
        refusal.message,
        "no pool knows the platform property \"container-image\" (requested with value \"x\"); \
         known: Arch, ISA, OSFamily, Pool, gpu; an image of a registry is written \
         docker://HOST/REPOSITORY[:TAG][@sha256:DIGEST]"
    );
}

#[test]
fn an_unknown_value_is_named_with_those_on_offer() {
    let refusal = refused(&[("OSFamily", "windows")]);
    assert_eq!(refusal.message, "no pool offers OSFamily = \"windows\"; available: linux, macos");
    let refusal = refused(&[("OSFamily", "windows"), ("gpu", "h100")]);
    assert_eq!(refusal.offered, ["linux"]);
    let message = "no pool offers OSFamily = \"windows\" together with gpu = \"h100\"; available: linux";
    assert_eq!(refusal.message, message);
    assert_eq!(refused(&[("Pool", "gup")]).offered, ["default", "gpu", "mac"]);
}

#[test]
fn a_combination_that_no_pool_has_is_refused() {
    let refusal = refused(&[("OSFamily", "macos"), ("Arch", "x86_64")]);
    assert_eq!(
        (refusal.property.as_str(), refusal.offered.as_slice()),
        ("OSFamily", ["linux".to_owned()].as_slice())
    );
    assert!(refusal.message.contains("together with Arch"), "{}", refusal.message);
}

#[test]
fn without_any_pool_it_is_not_the_actions_fault() {
    assert_eq!(admit(&[], &Needs::default(), &[]), Err(AdmitError::NothingRegistered));
}

/// Two sizes of machines, and one with graphics processors.
fn machines() -> Vec<Pool> {
    vec![
        sized("small", 4000, 8 << 30, &[]),
        sized("large", 64_000, 256 << 30, &[]),
        sized("gpu", 16_000, 64 << 30, &[("gpu", 2), ("licence", 1)]),
    ]
}

fn size_refused(platform: &[(&str, &str)], needs: &Needs) -> Refusal {
    match admit(&ask(platform), needs, &machines()) {
        Err(AdmitError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_refusal_of_a_network_names_the_setting_and_only_that_one_does() {
    let offers = [pool("on", &[("network", &["on"])])];
    assert!(admit(&ask(&[("network", "on")]), &Needs::default(), &offers).is_ok());
    for pools in [farm(), vec![pool("other", &[("network", &["10g"])])]] {
        let refused = |name, value| match admit(&ask(&[(name, value)]), &Needs::default(), &pools) {
            Err(AdmitError::Refused(refusal)) => refusal.message,
            other => panic!("{other:?}"),
        };
        assert!(refused("network", "on").ends_with("with the setting action_network"));
        assert!(!refused("OSFamily", "plan9").contains("action_network"));
    }
}

#[test]
fn what_is_large_goes_to_where_it_fits_and_what_is_not_stays_off_special_machines() {
    let to = |needs: &Needs| admit(&[], needs, &machines()).unwrap().to_string();
    assert_eq!(to(&needs(Some(64_000), None, &[])), "large");
    assert_eq!(to(&needs(None, Some((8 << 30) + 1), &[])), "large");
    assert_eq!(to(&needs(Some(1000), None, &[("gpu", "2")])), "gpu");
    let special_first = [sized("a", 4000, 1 << 30, &[("gpu", 1)]), sized("b", 4000, 1 << 30, &[])];
    assert_eq!(admit(&[], &Needs::default(), &special_first).unwrap().as_str(), "b");
}

#[test]
fn what_no_machine_has_is_named_with_the_most_on_offer() {
    let refusal = size_refused(&[], &needs(Some(64_001), None, &[]));
    let message = "no pool has an executor with EstimatedCPU = \"64.001\"; available at most: 64";
    assert_eq!((refusal.message.as_str(), refusal.property.as_str()), (message, "EstimatedCPU"));
    assert_eq!(refusal.offered, ["64"]);
    let refusal = size_refused(&[], &needs(None, Some((256 << 30) + 1), &[]));
    let message = "no pool has an executor with EstimatedMemory = \"256.01GiB\"; available at most: 256GiB";
    assert_eq!(refusal.message, message, "never the same number on both sides");
    let refusal = size_refused(&[], &needs(None, None, &[("gpu", "2.5")]));
    let message = "no pool has an executor with resources:gpu = \"2.5\"; available at most: 2";
    assert_eq!(refusal.message, message);
}

#[test]
fn a_size_that_only_other_machines_have_is_refused_as_the_combination_it_is() {
    let refusal = size_refused(&[("Pool", "small")], &needs(Some(8000), None, &[]));
    assert_eq!((refusal.property.as_str(), refusal.value.as_str()), ("Pool", "small"));
    let message = "no pool offers Pool = \"small\" together with EstimatedCPU = \"8\"; available: gpu, large";
    assert_eq!(refusal.message, message);
    let refusal = size_refused(&[], &needs(Some(32_000), None, &[("gpu", "1")]));
    let message = "no pool has an executor with EstimatedCPU = \"32\" together with resources:gpu = \"1\"; \
                   available at most: 16";
    assert_eq!(refusal.message, message);
}

#[test]
fn an_unknown_resource_is_named_with_the_known_ones() {
    let refusal = size_refused(&[], &needs(Some(1), None, &[("tpu", "1")]));
    let message = "no pool knows the resource \"resources:tpu\" (requested with value \"1\"); \
                   known: resources:gpu, resources:licence";
    assert_eq!((refusal.message.as_str(), refusal.property.as_str()), (message, "resources:tpu"));
    assert_eq!(refusal.offered, ["resources:gpu", "resources:licence"]);
}

#[test]
fn a_pool_of_which_nobody_knows_how_large_it_is_takes_all() {
    let huge = needs(Some(1 << 40), Some(1 << 50), &[("tpu", "9")]);
    assert_eq!(admit(&[], &huge, &farm()).unwrap().as_str(), "default");
}

fn any_needs() -> impl Strategy<Value = Needs> {
    let custom = proptest::collection::btree_map("[g-i]", 0_u64..3, 0..3);
    (proptest::option::of(0_u64..4), proptest::option::of(0_u64..4), custom).prop_map(
        |(cpu_millis, memory_bytes, custom)| {
            let custom =
                custom.into_iter().map(|(name, amount)| (name.parse().unwrap(), Amount::of_micros(amount)));
            Needs { cpu_millis, memory_bytes, custom: custom.collect(), ..Needs::default() }
        },
    )
}

fn any_capacity() -> impl Strategy<Value = Resources> {
    any_needs().prop_map(|needs| Resources {
        cpu_millis: needs.cpu_millis.unwrap_or_default(),
        memory_bytes: needs.memory_bytes.unwrap_or_default(),
        custom: needs.custom,
    })
}

fn any_pools() -> impl Strategy<Value = Vec<Pool>> {
    let properties = proptest::collection::btree_map("[a-c]", proptest::collection::vec("[x-z]", 1..3), 0..3);
    proptest::collection::btree_map("[p-t]", (properties, any_capacity()), 1..5).prop_map(|pools| {
        let one = |(name, (properties, capacity)): (String, _)| Pool {
            name: name.parse().unwrap(),
            properties,
            root_is_input: false,
            capacity,
            executor_type: model::ExecutorType::x86(),
        };
        pools.into_iter().map(one).collect()
    })
}

proptest! {
    #[test]
    fn what_is_admitted_fits_and_what_is_refused_fits_nowhere(
        pools in any_pools(),
        platform in proptest::collection::vec(("[a-d]", "[x-z]"), 0..4),
        needs in any_needs(),
    ) {
        let fits = |pool: &Pool| {
            let has = |(name, value): &RequestedProperty| {
                pool.properties.get(name).is_some_and(|all| all.contains(value))
            };
            let whole = Resources {
                cpu_millis: needs.cpu_millis.unwrap_or_default(),
                memory_bytes: needs.memory_bytes.unwrap_or_default(),
                custom: needs.custom.clone(),
            };
            platform.iter().all(has) && (pool.capacity == Resources::default() || whole.fits(&pool.capacity))
        };
        let special = |pool: &Pool| pool.properties.len() + pool.capacity.custom.len();
        match admit(&platform, &needs, &pools) {
            Ok(name) => {
                let chosen = pools.iter().find(|pool| pool.name == name).unwrap();
                prop_assert!(fits(chosen));
                let plainer = |pool: &&Pool| fits(pool) && special(pool) < special(chosen);
                prop_assert!(pools.iter().find(plainer).is_none());
            }
            Err(AdmitError::Refused(refusal)) => {
                prop_assert!(!pools.iter().any(fits));
                let asked = (refusal.property.clone(), refusal.value.clone());
                let of_size = refusal.property.starts_with("Estimated") || refusal.property.starts_with("resources:");
                prop_assert!(platform.contains(&asked) || of_size, "{asked:?}");
                prop_assert!(refusal.message.contains(&refusal.property));
                prop_assert!(refusal.message.contains(&refusal.value));
                let mut sorted = refusal.offered.clone();
                sorted.sort();
                sorted.dedup();
                prop_assert_eq!(&sorted, &refusal.offered);
                prop_assert!(!refusal.offered.is_empty() || refusal.message.ends_with("nothing"));
            }
            Err(AdmitError::NothingRegistered) => prop_assert!(pools.is_empty()),
        }
    }

    #[test]
    fn the_input_root_is_slash_only_if_that_is_asked_for(
        pools in any_pools(),
        rooted in proptest::collection::vec(any::<bool>(), 5),
        platform in proptest::collection::vec(("[a-d]", "[x-z]"), 0..3),
    ) {
        let with = |(pool, root_is_input): (&Pool, &bool)| Pool { root_is_input: *root_is_input, ..pool.clone() };
        let pools: Vec<Pool> = pools.iter().zip(&rooted).map(with).collect();
        let met = |pool: &Pool| platform.iter().all(|asked| Requirement::Property(asked).is_met_by(pool));
        let Ok(chosen) = admit(&platform, &Needs::default(), &pools) else { return Ok(()) };
        let chosen = pools.iter().find(|pool| pool.name == chosen).unwrap();
        prop_assert!(met(chosen));
        if chosen.root_is_input {
            let offered = |asked: &RequestedProperty| {
                pools.iter().any(|pool| !pool.root_is_input && Requirement::Property(asked).is_met_by(pool))
            };
            prop_assert!(platform.iter().any(|asked| !offered(asked)));
        }
    }

    #[test]
    fn the_order_in_which_pools_are_listed_does_not_matter(
        pools in any_pools(),
        platform in proptest::collection::vec(("[a-d]", "[x-z]"), 0..4),
        needs in any_needs(),
    ) {
        let mut reversed = pools.clone();
        reversed.reverse();
        prop_assert_eq!(admit(&platform, &needs, &pools), admit(&platform, &needs, &reversed));
    }
}

#[test]
fn hardware_groups_have_alternatives_and_threads_are_at_least() {
    let farm = [
        pool("old", &[("hwgroup", &["g1"]), ("threads", &["4"]), ("env", &["c", "java"])]),
        pool("new", &[("hwgroup", &["g2"]), ("threads", &["16"]), ("env", &["c"]), ("gpu", &["1"])]),
    ];
    let admit = |pairs: &[(&str, &str)]| admit(&ask(pairs), &Needs::default(), &farm);
    let name = |pairs: &[(&str, &str)]| admit(pairs).unwrap().to_string();
    assert_eq!(name(&[("hwgroup", "g2|g3")]), "new");
    assert_eq!(name(&[("hwgroup", "g1|g2"), ("threads", "8")]), "new");
    assert_eq!(name(&[("threads", "4"), ("env", "java")]), "old");
    assert_eq!(name(&[("threads", "2")]), "old", "the plainest of those that have enough");
    let refusal = |pairs: &[(&str, &str)]| match admit(pairs) {
        Err(AdmitError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let found = refusal(&[("threads", "17")]);
    assert_eq!((found.property.as_str(), found.offered.join(" ")), ("threads", "16 4".to_owned()));
    assert_eq!(refusal(&[("hwgroup", "g3|g4")]).offered, ["g1", "g2"]);
    assert_eq!(refusal(&[("env", "java"), ("hwgroup", "g2")]).property, "env");
    assert!(matches!(admit(&[("env", "c|java")]), Err(AdmitError::Refused(_))));
}
