//! Attributes what a build tool reports of its targets to the targets that the build's call names.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    slice,
};

use model::{Digest, TargetFacts, ToolCall, ToolFacts};

/// Maximum number of targets of a call that facts are kept of.
const TARGETS_MAX: usize = 64;
/// Maximum number of tags, and of rules, of a target of the call.
const NAMES_MAX: usize = 32;
/// Maximum length of a target by which facts are kept, in bytes; a longer one, such as a script, is replaced by its digest.
const TARGET_BYTES_MAX: usize = 200;
/// Maximum size of all tags, rules and targets of the facts of a build in bytes: its record must fit a message.
const FACTS_BYTES_MAX: usize = 32 << 10;
/// Maximum length of a version, a tag or a rule in bytes; longer ones are left out.
const NAME_BYTES_MAX: usize = 100;

/// A target that the tool configured in a build.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfiguredTarget {
    /// Label of the target, such as `//a/b:c`.
    pub label: String,
    /// Its own tags and rule.
    pub facts: TargetFacts,
}

/// The facts about the build whose tool call is `call`: those of each target that the call names. If it names none of the
/// `configured` targets, as a script does, all facts belong to each of its targets; without targets, to the empty name.
pub fn tool_facts(call: &ToolCall, version: &str, configured: &BTreeSet<ConfiguredTarget>) -> ToolFacts {
    let mut targets: BTreeMap<String, TargetFacts> = BTreeMap::new();
    let mut left = FACTS_BYTES_MAX;
    for named in call.targets.iter().take(TARGETS_MAX) {
        let mut own = configured.iter().filter(|target| is_named(named, &target.label)).peekable();
        if own.peek().is_some() {
            insert(&mut targets, &mut left, named, own);
        }
    }
    if targets.is_empty() {
        let unnamed = String::new();
        let names = if call.targets.is_empty() { slice::from_ref(&unnamed) } else { &call.targets };
        for name in names.iter().take(TARGETS_MAX) {
            insert(&mut targets, &mut left, name, configured.iter());
        }
    }
    let version = if is_short(version) { version.to_owned() } else { String::new() };
    ToolFacts { version, targets }
}

/// Adds the facts of a target of the call, if they fit into what is `left` of the size of all facts.
fn insert<'a>(
    targets: &mut BTreeMap<String, TargetFacts>,
    left: &mut usize,
    name: &str,
    of: impl Iterator<Item = &'a ConfiguredTarget>,
) {
    let (name, facts) = (fact_name(name), sum(of));
    let bytes = name.len() + facts.tags.iter().chain(&facts.rules).map(String::len).sum::<usize>();
    if !facts.is_empty() && bytes <= *left {
        *left -= bytes;
        targets.insert(name.into_owned(), facts);
    }
}

/// The name by which facts about a target of a call are kept.
pub(crate) fn fact_name(target: &str) -> Cow<'_, str> {
    if target.len() <= TARGET_BYTES_MAX {
        return target.into();
    }
    Digest::of(target.as_bytes()).to_string().into()
}

pub(crate) fn is_short(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control)
}

fn sum<'a>(targets: impl Iterator<Item = &'a ConfiguredTarget>) -> TargetFacts {
    let mut all = TargetFacts::default();
    for ConfiguredTarget { facts, .. } in targets {
        add_names(&mut all.tags, &facts.tags);
        add_names(&mut all.rules, &facts.rules);
    }
    all
}

/// Adds tags or rules, up to the maximum number of them.
pub(crate) fn add_names(to: &mut BTreeSet<String>, names: &BTreeSet<String>) {
    for name in names.iter().filter(|name| is_short(name)) {
        if to.len() < NAMES_MAX {
            to.insert(name.clone());
        }
    }
}

/// Whether Bazel's target pattern `pattern`, seen from the root of the workspace, names the target `label`.
fn is_named(pattern: &str, label: &str) -> bool {
    let (Some((package, name)), false) = (split(label), pattern.starts_with('-')) else { return false };
    let pattern = pattern.trim_start_matches('@');
    let (wanted, wanted_name) = match pattern.rsplit_once(':') {
        Some((package, name)) => (package, Some(name)),
        None => (pattern, None),
    };
    let wanted = wanted.strip_prefix("//").unwrap_or(wanted);
    if let Some(above) = wanted.strip_suffix("...") {
        let above = above.strip_suffix('/').unwrap_or(above);
        return above.is_empty()
            || package.strip_prefix(above).is_some_and(|below| below.is_empty() || below.starts_with('/'));
    }
    let wanted_name = match wanted_name {
        Some("all" | "*" | "all-targets") => return wanted == package,
        Some(name) => name,
        None => wanted.rsplit('/').next().unwrap_or_default(),
    };
    wanted == package && wanted_name == name
}

/// The package and the name of a label of the main repository.
fn split(label: &str) -> Option<(&str, &str)> {
    label.trim_start_matches('@').strip_prefix("//")?.rsplit_once(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(label: &str, rule: &str, tags: &[&str]) -> ConfiguredTarget {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let rules = [rule.to_owned()].into();
        ConfiguredTarget { label: label.to_owned(), facts: TargetFacts { tags, rules } }
    }

    fn call(targets: &[&str]) -> ToolCall {
        ToolCall {
            targets: targets.iter().map(|target| (*target).to_owned()).collect(),
            ..ToolCall::default()
        }
    }

    fn rules(facts: &ToolFacts, target: &str) -> Vec<String> {
        facts.targets.get(target).map(|facts| facts.rules.iter().cloned().collect()).unwrap_or_default()
    }

    #[test]
    fn patterns_name_targets_as_in_bazel() {
        for (pattern, label, named) in [
            ("//a/b:c", "//a/b:c", true),
            ("a/b:c", "@//a/b:c", true),
            ("//a/b", "//a/b:b", true),
            ("//a/b", "//a/b:c", false),
            (":c", "//:c", true),
            ("//a:all", "//a:c", true),
            ("//a:*", "//a/b:c", false),
            ("//a/...", "//a/b:c", true),
            ("//a/...", "//a:c", true),
            ("//a/...", "//ab:c", false),
            ("//...", "//:c", true),
            ("...", "//x/y:c", true),
            ("//a/...:all", "//a/b:c", true),
            ("-//a:c", "//a:c", false),
            ("//a:b", "a.txt", false),
        ] {
            assert_eq!(is_named(pattern, label), named, "{pattern} {label}");
        }
    }

    #[test]
    fn each_target_of_the_call_has_the_facts_of_what_it_names() {
        let configured =
            [target("//a:x", "cc_test", &["slow"]), target("//b:y", "swift_binary", &["requires-gpu"])]
                .into();
        let facts = tool_facts(&call(&["//a/...", "//b:y", "//c:z"]), "7.1", &configured);
        assert_eq!(facts.version, "7.1");
        assert_eq!(
            (rules(&facts, "//a/..."), rules(&facts, "//b:y")),
            (vec!["cc_test".into()], vec!["swift_binary".into()])
        );
        assert!(!facts.targets.contains_key("//c:z"));
        let script = tool_facts(&call(&["bazel test //a:x"]), "", &configured);
        assert_eq!(rules(&script, "bazel test //a:x"), ["cc_test", "swift_binary"]);
        assert_eq!(rules(&tool_facts(&call(&[]), "", &configured), ""), ["cc_test", "swift_binary"]);
        assert_eq!(tool_facts(&call(&["x"]), "", &BTreeSet::new()), ToolFacts::default());
    }

    #[test]
    fn facts_have_a_limited_size() {
        let many: BTreeSet<ConfiguredTarget> = (0..1000)
            .map(|n| target(&format!("//a:{n}"), &format!("rule{n}"), &[&"x".repeat(1000)]))
            .collect();
        let facts = tool_facts(&call(&["//a/..."]), &"9".repeat(1000), &many);
        let of_all = &facts.targets["//a/..."];
        assert_eq!((of_all.rules.len(), of_all.tags.len(), facts.version.as_str()), (NAMES_MAX, 0, ""));
        let tagged: BTreeSet<ConfiguredTarget> = (0..1000)
            .map(|n| {
                target(
                    &format!("//a:{n}"),
                    &format!("rule{n}{}", "x".repeat(80)),
                    &[&format!("tag{n}{}", "x".repeat(80))],
                )
            })
            .collect();
        let scripts: Vec<String> = (0..100).map(|n| format!("{n}{}", "y".repeat(5000))).collect();
        let facts = tool_facts(&call(&scripts.iter().map(String::as_str).collect::<Vec<_>>()), "", &tagged);
        assert!(serde_json::to_vec(&facts).unwrap().len() < 2 * FACTS_BYTES_MAX);
        assert!(facts.targets.contains_key(fact_name(&scripts[0]).as_ref()));
    }
}
