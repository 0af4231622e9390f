//! Services that several actions share, as a platform property.
//!
//! `forebay-shared-services` has the id of such services, a UUID that is not to be guessed. An action that also has
//! `forebay-services` runs these services for others, instead of its command, until it is stopped. Any other action with the
//! property uses them: only the executor where they run can run it, for the same group. Both always run, once.

use std::borrow::Cow;

use model::{ExecutorHeartbeat, Pool, Requirements, SharedServices, SharedServicesId};

use super::{invalid_need::InvalidNeed, services::asked_services};

/// The property that has the id of services that several actions share. Executors offer it where they run.
pub const SHARED_SERVICES_PROPERTY: &str = "forebay-shared-services";

/// Whether a property has the id of shared services.
pub(super) fn has(name: &str) -> bool {
    name.eq_ignore_ascii_case(SHARED_SERVICES_PROPERTY)
}

pub(super) fn parse(name: &str, value: &str) -> Result<SharedServicesId, InvalidNeed> {
    value.parse().map_err(|_| InvalidNeed::of(name, value, "expected the id of shared services, a UUID"))
}

/// What an action with these properties has to do with shared services, and their id; `None` if nothing.
///
/// Fails if the id cannot be read, or if there are two.
pub fn asked_shared_services(
    platform: &[(String, String)],
) -> Result<Option<(SharedServices, SharedServicesId)>, InvalidNeed> {
    let mut all = platform.iter().filter(|(name, _)| has(name));
    let Some((name, value)) = all.next() else { return Ok(None) };
    if let Some((name, value)) = all.next() {
        return Err(InvalidNeed::of(
            name,
            value,
            "expected the id of one start of services, but there are two",
        ));
    }
    let id = parse(name, value)?;
    let role = if asked_services(platform)?.is_empty() { SharedServices::Uses } else { SharedServices::Runs };
    Ok(Some((role, id)))
}

/// The requirement of an action that uses these services.
pub(super) fn requirement(id: SharedServicesId) -> (String, String) {
    (SHARED_SERVICES_PROPERTY.to_owned(), id.to_string())
}

/// Whether a requirement is met where shared services run now: no pool offers it.
pub(super) fn is_of_services((name, _): &(String, String)) -> bool {
    name == SHARED_SERVICES_PROPERTY
}

/// The same requirements without that of shared services: those that pools can meet.
pub fn of_pools(requirements: &Requirements) -> Cow<'_, Requirements> {
    let is_of_services = |name: &str| name == SHARED_SERVICES_PROPERTY;
    if !requirements.properties.iter().any(|it| is_of_services(&it.name)) {
        return Cow::Borrowed(requirements);
    }
    let mut others = requirements.clone();
    others.properties.retain(|it| !is_of_services(&it.name));
    Cow::Owned(others)
}

/// What an executor offers now, with the shared services that run on it, as a pool of its own.
pub fn offer_now(heartbeat: &ExecutorHeartbeat) -> Pool {
    let mut pool = heartbeat.offer();
    if !heartbeat.shared_services.is_empty() {
        let mut ids: Vec<String> = heartbeat.shared_services.iter().map(ToString::to_string).collect();
        ids.sort_unstable();
        pool.properties.insert(SHARED_SERVICES_PROPERTY.to_owned(), ids);
    }
    pool
}

/// Whether shared services run on the executors that offer this.
pub fn has_shared_services(offer: &Pool) -> bool {
    offer.properties.contains_key(SHARED_SERVICES_PROPERTY)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        actions::{SERVICES_OFFER, SERVICES_PROPERTY, network, read_needs},
        requirements::satisfies,
    };

    const ID: &str = "0192d3c0-5f0a-7a31-8b7e-2f0e9e4b1c5d";
    const SERVICES: &str = r#"[{"name":"db","command":["x"]}]"#;

    fn platform(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn pool(properties: &[(&str, &str)]) -> Pool {
        let values = |(name, value): &(&str, &str)| ((*name).to_owned(), vec![(*value).to_owned()]);
        Pool {
            name: "p".parse().unwrap(),
            properties: properties.iter().map(values).collect(),
            root_is_input: false,
            capacity: model::Resources::default(),
            executor_type: model::ExecutorType::x86(),
        }
    }

    #[test]
    fn an_action_with_services_runs_them_and_any_other_uses_them() {
        let of =
            |pairs: &[(&str, &str)]| asked_shared_services(&platform(pairs)).unwrap().map(|(role, _)| role);
        let (shared, services) = ((SHARED_SERVICES_PROPERTY, ID), (SERVICES_PROPERTY, SERVICES));
        assert_eq!(of(&[("Arch", "x"), services]), None);
        assert_eq!(of(&[shared, services]), Some(SharedServices::Runs));
        assert_eq!(of(&[services, ("Forebay-Shared-Services", ID)]), Some(SharedServices::Runs));
        assert_eq!(of(&[shared]), Some(SharedServices::Uses));
        for pairs in [&[shared, shared][..], &[(SHARED_SERVICES_PROPERTY, "mine")]] {
            assert!(asked_shared_services(&platform(pairs)).is_err(), "{pairs:?}");
            assert!(read_needs(&platform(pairs), &[]).is_err(), "{pairs:?}");
        }
    }

    #[test]
    fn both_always_run_and_only_a_user_needs_the_executor_where_they_are() {
        let runs =
            read_needs(&platform(&[(SHARED_SERVICES_PROPERTY, ID), (SERVICES_PROPERTY, SERVICES)]), &[])
                .unwrap();
        assert!(runs.do_not_cache && runs.needs.shared_services == SharedServices::Runs);
        assert_eq!(runs.platform, platform(&[SERVICES_OFFER]));
        let uses = read_needs(&platform(&[("Arch", "x"), (SHARED_SERVICES_PROPERTY, ID)]), &[]).unwrap();
        assert!(uses.do_not_cache && uses.needs.shared_services == SharedServices::Uses);
        assert_eq!(uses.platform, platform(&[("Arch", "x"), (SHARED_SERVICES_PROPERTY, ID)]));
    }

    #[test]
    fn a_user_of_services_has_no_other_network_and_no_interactor() {
        for other in [network::OFFER, ("forebay-interactor", r#"{"command":["judge"]}"#)] {
            let asked = platform(&[(SHARED_SERVICES_PROPERTY, ID), other]);
            let error = read_needs(&asked, &[]).unwrap_err().to_string();
            assert!(error.contains("services"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn an_executor_runs_a_user_if_it_meets_the_rest_and_runs_the_services(
            asked in prop::collection::btree_map("[a-c]", "[x-y]", 0..3),
            offered in prop::collection::btree_map("[a-c]", "[x-y]", 0..3),
            runs in any::<bool>(),
        ) {
            let pairs = asked.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let requirements = Requirements::of(pairs.chain([(SHARED_SERVICES_PROPERTY, ID)]));
            let pairs: Vec<(&str, &str)> =
                offered.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let there: &[(&str, &str)] = if runs { &[(SHARED_SERVICES_PROPERTY, ID)] } else { &[] };
            let executor = pool(&[&pairs, there].concat());
            let meets_rest = satisfies(&executor, &of_pools(&requirements));
            prop_assert_eq!(satisfies(&executor, &requirements), meets_rest && runs);
        }
    }
}
