use proptest::prelude::*;

use super::*;

fn pool(name: &str, properties: &[(&str, &[&str])]) -> Pool {
    let owned = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    Pool {
        name: name.parse().unwrap(),
        properties: properties.iter().map(|(name, values)| ((*name).to_owned(), owned(values))).collect(),
        root_is_input: false,
    }
}

fn ask(pairs: &[(&str, &str)]) -> Vec<Asked> {
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
    admit(&ask(pairs), &farm()).unwrap().to_string()
}

fn refused(pairs: &[(&str, &str)]) -> Refusal {
    match admit(&ask(pairs), &farm()) {
        Err(AdmitError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_asked_goes_to_the_default_pool_else_to_the_plainest() {
    assert_eq!(admitted(&[]), "default");
    let pools = [pool("b", &[("x", &["1"])]), pool("c", &[]), pool("a", &[])];
    assert_eq!(admit(&[], &pools).unwrap().as_str(), "a");
}

#[test]
fn of_several_the_plainest_wins() {
    assert_eq!(admitted(&[("OSFamily", "linux")]), "default");
    assert_eq!(admitted(&[("OSFamily", "linux"), ("gpu", "h100")]), "gpu");
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
        "no pool knows the platform property \"container-image\" (asked for with the value \"x\"); \
         known are: Arch, ISA, OSFamily, Pool, gpu"
    );
}

#[test]
fn an_unknown_value_is_named_with_those_on_offer() {
    let refusal = refused(&[("OSFamily", "windows")]);
    assert_eq!(refusal.message, "no pool offers OSFamily = \"windows\"; on offer: linux, macos");
    let refusal = refused(&[("OSFamily", "windows"), ("gpu", "h100")]);
    assert_eq!(refusal.offered, ["linux"]);
    let message = "no pool offers OSFamily = \"windows\" together with gpu = \"h100\"; on offer: linux";
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
    assert_eq!(admit(&[], &[]), Err(AdmitError::NothingRegistered));
}

fn any_pools() -> impl Strategy<Value = Vec<Pool>> {
    let properties = proptest::collection::btree_map("[a-c]", proptest::collection::vec("[x-z]", 1..3), 0..3);
    proptest::collection::btree_map("[p-t]", properties, 1..5).prop_map(|pools| {
        let one = |(name, properties): (String, _)| Pool {
            name: name.parse().unwrap(),
            properties,
            root_is_input: false,
        };
        pools.into_iter().map(one).collect()
    })
}

proptest! {
    #[test]
    fn what_is_admitted_fits_and_what_is_refused_fits_nowhere(
        pools in any_pools(),
        platform in proptest::collection::vec(("[a-d]", "[x-z]"), 0..4),
    ) {
        let fits = |pool: &Pool| platform.iter().all(|asked| offers(pool, asked));
        match admit(&platform, &pools) {
            Ok(name) => {
                let chosen = pools.iter().find(|pool| pool.name == name).unwrap();
                prop_assert!(fits(chosen));
                let fewer = |pool: &&Pool| fits(pool) && pool.properties.len() < chosen.properties.len();
                prop_assert!(pools.iter().find(fewer).is_none());
            }
            Err(AdmitError::Refused(refusal)) => {
                prop_assert!(!pools.iter().any(fits));
                let asked = (refusal.property.clone(), refusal.value.clone());
                prop_assert!(platform.contains(&asked));
                prop_assert!(refusal.message.contains(&refusal.property));
                let mut sorted = refusal.offered.clone();
                sorted.sort();
                sorted.dedup();
                prop_assert_eq!(&sorted, &refusal.offered);
                prop_assert!(!refusal.offered.is_empty());
            }
            Err(AdmitError::NothingRegistered) => prop_assert!(pools.is_empty()),
        }
    }

    #[test]
    fn the_order_in_which_pools_are_listed_does_not_matter(
        pools in any_pools(),
        platform in proptest::collection::vec(("[a-d]", "[x-z]"), 0..4),
    ) {
        let mut reversed = pools.clone();
        reversed.reverse();
        prop_assert_eq!(admit(&platform, &pools), admit(&platform, &reversed));
    }
}
