//! Decides which executor types a build uses, before it runs (section 4.1 of the paper).

use std::collections::{BTreeMap, BTreeSet};

use model::{ExecutorType, ToolCall};

/// Prefix of a sign that is a tag of a target rather than the beginning of a flag.
const TAG: &str = "tag:";

/// The executor types of a build with the tool call `call` that names the types `named`: x86, which all builds use; the
/// named types; types with a sign among its flags or its targets' tags; and types that its targets' rules used before.
pub fn executor_types(
    named: &BTreeSet<ExecutorType>,
    call: &ToolCall,
    signs: &BTreeMap<ExecutorType, Vec<String>>,
    by_rule: &BTreeMap<String, BTreeSet<ExecutorType>>,
) -> BTreeSet<ExecutorType> {
    let shows = |sign: &String| match sign.strip_prefix(TAG) {
        Some(tag) => call.tags.contains(tag),
        None => call.flags.iter().any(|flag| flag.starts_with(sign.as_str())),
    };
    let signed = signs.iter().filter(|(_, signs)| signs.iter().any(shows)).map(|(kind, _)| kind);
    // Types that this farm no longer has are ignored.
    let used = call.rules.iter().filter_map(|rule| by_rule.get(rule)).flatten();
    let used = used.filter(|kind| signs.contains_key(*kind));
    let mut all: BTreeSet<ExecutorType> = named.iter().chain(signed).chain(used).cloned().collect();
    all.insert(ExecutorType::x86());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(named: &[&str], flags: &[&str], tags: &[&str], rules: &[&str]) -> Vec<String> {
        let kind = |name: &str| name.parse::<ExecutorType>().unwrap();
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let signs = [("x86", vec![]), ("mac", vec!["--ios"]), ("gpu", vec!["tag:requires-gpu"])];
        let signs = signs.map(|(name, signs)| (kind(name), texts(&signs))).into();
        let by_rule = [
            ("swift_binary".to_owned(), BTreeSet::from([kind("mac")])),
            ("old".to_owned(), BTreeSet::from([kind("vax")])),
        ];
        let call = ToolCall {
            flags: texts(flags),
            tags: texts(tags).into_iter().collect(),
            rules: texts(rules).into_iter().collect(),
            ..ToolCall::default()
        };
        let named = named.iter().map(|name| kind(name)).collect();
        executor_types(&named, &call, &signs, &by_rule.into()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn flags_tags_rules_and_the_publisher_tell() {
        assert_eq!(types(&[], &["-c"], &["slow"], &["cc_binary"]), ["x86"]);
        assert_eq!(types(&[], &["--ios_sdk=14"], &[], &[]), ["mac", "x86"]);
        assert_eq!(types(&[], &[], &["requires-gpu"], &["swift_binary"]), ["gpu", "mac", "x86"]);
        assert_eq!(types(&["tpu"], &[], &[], &["old"]), ["tpu", "x86"], "a type that is gone is not used");
    }
}
