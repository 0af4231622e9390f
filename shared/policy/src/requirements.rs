//! Matches requirements of work with the properties of a machine, as the broker of `ReCodEx` does.

use std::collections::{BTreeMap, BTreeSet};

/// Property for hardware groups: any of the requested groups, separated by `|`.
const HARDWARE_GROUP: &str = "hwgroup";
/// Property for threads: at least the requested number.
const THREADS: &str = "threads";

/// Whether the properties `offered` meet all requirements in `asked`.
///
/// - `hwgroup`: any of the requested groups, `a|b`;
/// - `threads`: at least the requested number;
/// - any other property, including `env`: one of the offered values equals the requested one.
///
/// A requirement for a property that is not offered is not met.
pub fn matches(asked: &BTreeMap<String, String>, offered: &BTreeMap<String, BTreeSet<String>>) -> bool {
    let met = |name: &str, value: &str| {
        let values = offered.get(name)?;
        Some(value_matches(name, value, values.iter().map(String::as_str)))
    };
    asked.iter().all(|(name, value)| met(name, value).unwrap_or(false))
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
        _ => offered.any(|value| value == asked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn machine() -> BTreeMap<String, BTreeSet<String>> {
        [("hwgroup", vec!["g1"]), ("env", vec!["c", "java"]), ("threads", vec!["8"]), ("os", vec!["linux"])]
            .into_iter()
            .map(|(name, values)| (name.to_owned(), values.into_iter().map(str::to_owned).collect()))
            .collect()
    }

    #[test]
    fn each_kind_of_requirement_is_matched_by_its_own_rule() {
        let met = |pairs: &[(&str, &str)]| matches(&asked(pairs), &machine());
        assert!(met(&[]));
        assert!(met(&[("hwgroup", "g2|g1"), ("env", "java"), ("threads", "8"), ("os", "linux")]));
        assert!(!met(&[("hwgroup", "g2|g3")]));
        assert!(!met(&[("hwgroup", "g")]));
        assert!(!met(&[("env", "c|java")]), "only hardware groups have alternatives");
        assert!(!met(&[("threads", "9")]));
        assert!(met(&[("threads", "2")]));
        assert!(!met(&[("threads", "many")]));
        assert!(!met(&[("gpu", "1")]), "what is not offered is not met");
    }
}
