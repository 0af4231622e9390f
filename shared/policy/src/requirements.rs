//! Matches requirements of work with the properties of a machine, as the broker of `ReCodEx` does.

use std::collections::BTreeSet;

use model::{Pool, RequestedProperty, Requirements, SECRETS_PROPERTY};

use crate::actions::{IMAGE_PROPERTY, names_image};

/// The property that asks for a pool by name. Every pool offers it.
pub const POOL_PROPERTY: &str = "Pool";
/// Properties whose values are compared without regard to case.
const CASELESS: [&str; 4] = [POOL_PROPERTY, "OSFamily", "Arch", "ISA"];
/// Property for hardware groups: any of the requested groups, separated by `|`.
const HARDWARE_GROUP: &str = "hwgroup";
/// Property for threads: at least the requested number.
const THREADS: &str = "threads";

/// The value of `container-image` by which a worker offers to run builds in any image.
pub const ANY_IMAGE: &str = "docker://";

/// Whether the values that a machine offers, by `offered` for each property, meet all requirements in `asked`.
///
/// - `hwgroup`: any of the requested groups, `a|b`;
/// - `threads`: at least the requested number;
/// - `container-image`: the name of an image of a registry is met by that name and by [`ANY_IMAGE`];
/// - `secrets/GROUP`: all of the requested secrets, `a,b`;
/// - any other property, including `env`: one of the offered values equals the requested one; `Pool`, `OSFamily`, `Arch`
///   and `ISA` without regard to case.
///
/// A requirement for a property that is not offered is not met.
pub fn matches<'a, 'o, Values: Iterator<Item = &'o str>>(
    asked: impl IntoIterator<Item = (&'a str, &'a str)>,
    offered: impl Fn(&str) -> Values,
) -> bool {
    asked.into_iter().all(|(name, value)| value_matches(name, value, offered(name)))
}

/// Whether executors that offer what `pool` offers can run what requires `requirements`, of any size.
pub fn satisfies(pool: &Pool, requirements: &Requirements) -> bool {
    let asked = requirements.properties.iter();
    let asked = asked.map(|RequestedProperty { name, value }| (name.as_str(), value.as_str()));
    pool.root_is_input == requirements.root_is_input && matches(asked, |name| values(pool, name))
}

/// The values that `pool` offers for the property `name`.
pub(crate) fn values<'a>(pool: &'a Pool, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let own = (name == POOL_PROPERTY).then(|| pool.name.as_str());
    own.into_iter().chain(pool.properties.get(name).into_iter().flatten().map(String::as_str))
}

/// Whether one of the values `offered` of the property `name` meets the one `asked` for.
pub fn value_matches<'a>(name: &str, asked: &str, mut offered: impl Iterator<Item = &'a str>) -> bool {
    match name {
        HARDWARE_GROUP => offered.any(|group| asked.split('|').any(|wanted| wanted.trim() == group)),
        THREADS => {
            let number = |text: &str| text.trim().parse::<u64>().ok();
            let most = offered.filter_map(number).max();
            number(asked).zip(most).is_some_and(|(asked, most)| most >= asked)
        }
        IMAGE_PROPERTY if names_image(asked) => offered.any(|value| value == ANY_IMAGE || value == asked),
        _ if name.starts_with(SECRETS_PROPERTY) => {
            let offered: BTreeSet<&str> = offered.collect();
            names_of_secrets(asked).all(|name| offered.contains(name))
        }
        _ if CASELESS.contains(&name) => offered.any(|value| value.eq_ignore_ascii_case(asked)),
        _ => offered.any(|value| value == asked),
    }
}

/// The value by which a build requires these secrets of its group.
pub(crate) fn secrets_value<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: BTreeSet<&str> = names.into_iter().collect();
    names.into_iter().collect::<Vec<_>>().join(",")
}

/// The secrets that such a value names.
pub(crate) fn names_of_secrets(value: &str) -> impl Iterator<Item = &str> {
    value.split(',')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::{ExecutorType, Resources};

    use super::*;

    fn machine() -> Pool {
        let properties: [(&str, &[&str]); 4] =
            [("hwgroup", &["g1"]), ("env", &["c", "java"]), ("threads", &["8"]), ("OSFamily", &["Linux"])];
        let owned = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
        let properties: BTreeMap<String, Vec<String>> =
            properties.into_iter().map(|(name, values)| (name.to_owned(), owned(values))).collect();
        Pool {
            name: "fast".parse().unwrap(),
            properties,
            root_is_input: false,
            capacity: Resources::default(),
            executor_type: ExecutorType::x86(),
        }
    }

    #[test]
    fn any_image_of_a_registry_is_met_where_any_is_offered() {
        let met =
            |asked: &str, offered: &[&str]| value_matches("container-image", asked, offered.iter().copied());
        assert!(met("docker://a.b/c:1", &["docker://"]));
        // A worker may itself run in an image.
        assert!(
            met("docker://a.b/c:1", &["docker://a.b/c:1"]) && !met("docker://a.b/c:1", &["docker://a.b/c"])
        );
        assert!(!met("docker://a.b/c:1", &[]) && !met("docker://A", &["docker://"]));
        assert!(
            met("debian-12", &["debian-12", "docker://"]) && !met("debian-11", &["debian-12", "docker://"])
        );
    }

    #[test]
    fn all_secrets_of_a_build_must_be_on_its_worker() {
        let met = |asked: &str, offered: &[&str]| value_matches("secrets/g", asked, offered.iter().copied());
        assert!(met("a", &["b", "a"]) && met("a,b", &["b", "a"]));
        assert!(!met("a,b", &["a"]) && !met("a", &[]) && !met("a", &["a,b", "aa"]));
        assert_eq!(secrets_value(["b", "a", "b"]), "a,b");
    }

    #[test]
    fn each_kind_of_requirement_is_matched_by_its_own_rule() {
        let met = |pairs: &[(&str, &str)]| satisfies(&machine(), &Requirements::of(pairs.iter().copied()));
        assert!(met(&[]));
        assert!(met(&[("hwgroup", "g2|g1"), ("env", "java"), ("threads", "8"), ("OSFamily", "linux")]));
        assert!(met(&[("Pool", "FAST"), ("env", "c"), ("env", "java")]));
        assert!(!met(&[("Pool", "fast"), ("Pool", "slow")]), "a contradiction");
        assert!(!met(&[("env", "C")]));
        assert!(!met(&[("hwgroup", "g2|g3")]));
        assert!(!met(&[("hwgroup", "g")]));
        assert!(!met(&[("env", "c|java")]), "only hardware groups have alternatives");
        assert!(!met(&[("threads", "9")]));
        assert!(met(&[("threads", "2")]));
        assert!(!met(&[("threads", "many")]));
        assert!(!met(&[("gpu", "1")]), "what is not offered is not met");
        let root = Requirements { root_is_input: true, ..Requirements::default() };
        assert!(!satisfies(&machine(), &root));
        assert!(satisfies(&Pool { root_is_input: true, ..machine() }, &root));
        assert!(!satisfies(&Pool { root_is_input: true, ..machine() }, &Requirements::default()));
    }
}
