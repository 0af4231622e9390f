//! What ended builds showed about their tools, for later builds of the same sources.

use std::slice;

use model::{Build, TargetFacts, ToolFacts, ToolHints};

use crate::{
    hash::Hasher,
    recent::Recent,
    tool_facts::{add_names, fact_name, is_short},
    workspace::source_of,
};

/// Variable in which a build names the version of Bazel for Bazelisk.
const VERSION_VARIABLE: &str = "USE_BAZEL_VERSION";

/// Tags and rules of targets, learned from ends of builds: the last end counts.
#[derive(Debug, Clone)]
pub struct LearnedTools(Recent<u64, TargetFacts>);

impl LearnedTools {
    /// Remembers at most `most` targets: the latest ones.
    pub fn new(most: usize) -> Self {
        Self(Recent::new(most))
    }

    /// Learns from the end of `build`, whose tool reported `facts`.
    pub fn observe(&mut self, build: &Build, facts: &ToolFacts) {
        for (target, facts) in &facts.targets {
            self.0.of(target_key(build, target).0).clone_from(facts);
        }
    }

    /// Adds what is known of `targets` to `hints`.
    pub fn complete(&self, hints: &mut ToolHints, targets: &[TargetKey]) {
        for facts in targets.iter().filter_map(|target| self.0.get(target.0)) {
            add_names(&mut hints.tags, &facts.tags);
            add_names(&mut hints.rules, &facts.rules);
        }
    }
}

/// Key of a target of a build, among builds of its group with the same sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetKey(u64);

/// The keys of the targets that `build` names.
pub fn target_keys(build: &Build) -> Vec<TargetKey> {
    let call = build.tool_call();
    let unnamed = String::new();
    let targets = if call.targets.is_empty() { slice::from_ref(&unnamed) } else { &call.targets };
    targets.iter().map(|target| target_key(build, &fact_name(target))).collect()
}

/// What `build` itself shows of its tool. `version_file` is the content of its file `.bazelversion`, if that is known; the
/// variable `USE_BAZEL_VERSION` takes precedence.
pub fn own_hints(build: &Build, version_file: Option<&str>) -> ToolHints {
    ToolHints { version: requested_version(build, version_file).to_owned(), ..ToolHints::default() }
}

/// Whether the version of the tool is known without the file `.bazelversion`.
pub fn states_version(build: &Build) -> bool {
    let is_stated = build.tool.as_ref().is_some_and(|tool| !tool.tool_version.is_empty());
    is_stated || !requested_version(build, None).is_empty()
}

fn requested_version<'a>(build: &'a Build, version_file: Option<&'a str>) -> &'a str {
    let variable = build.env.get(VERSION_VARIABLE).map(|version| version.trim());
    let file = version_file.and_then(|text| text.lines().next()).map(str::trim);
    variable
        .filter(|version| !version.is_empty())
        .or(file)
        .filter(|version| is_short(version))
        .unwrap_or_default()
}

fn target_key(build: &Build, target: &str) -> TargetKey {
    let (kind, location) = source_of(&build.context);
    let scope = [build.group.as_str(), kind, &location];
    TargetKey(Hasher::new("tool.target").all(scope.into_iter()).text(target).key())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::{BuildId, BuildRequest, Context, Millis, RequestLimits};

    use super::*;

    fn build(url: &str, revision: &str, command: &str, version: Option<&str>) -> Build {
        let command = command.split(' ').map(str::to_owned).collect();
        let env = version.map(|version| (VERSION_VARIABLE.to_owned(), version.to_owned()));
        let context = Context::Git { url: url.into(), revision: revision.into(), patch: None };
        let id = Some(BuildId::generate());
        let request =
            BuildRequest { id, command, context, env: env.into_iter().collect(), ..BuildRequest::default() };
        let limits = RequestLimits::default();
        request.validate(&"ci".parse().unwrap(), None, None, &limits, Millis(0)).unwrap().build
    }

    fn known(tools: &LearnedTools, build: &Build) -> ToolHints {
        let mut hints = own_hints(build, None);
        tools.complete(&mut hints, &target_keys(build));
        hints
    }

    fn facts(version: &str, targets: &[(&str, &str, &str)]) -> ToolFacts {
        let of = |(target, tag, rule): &(&str, &str, &str)| {
            (
                (*target).to_owned(),
                TargetFacts { tags: [(*tag).to_owned()].into(), rules: [(*rule).to_owned()].into() },
            )
        };
        ToolFacts { version: version.to_owned(), targets: targets.iter().map(of).collect::<BTreeMap<_, _>>() }
    }

    #[test]
    fn tags_and_rules_are_known_by_target_whatever_else_the_next_build_names() {
        let mut tools = LearnedTools::new(9);
        let first = build("url", "main", "bazel test //a:b //c/...", None);
        assert!(known(&tools, &first).is_empty());
        tools.observe(
            &first,
            &facts("7.1", &[("//a:b", "gpu", "cc_test"), ("//c/...", "mac", "swift_binary")]),
        );
        let hints = known(&tools, &build("url", "dev", "bazel build -k //c/... //d:e", None));
        assert_eq!(
            (hints.tags, hints.rules),
            (["mac".to_owned()].into(), ["swift_binary".to_owned()].into())
        );
        assert!(known(&tools, &build("other", "main", "bazel test //a:b", None)).is_empty());
    }

    #[test]
    fn the_version_is_what_the_environment_or_the_sources_ask_for() {
        let version =
            |variable, file| own_hints(&build("url", "main", "bazel test //...", variable), file).version;
        assert_eq!(version(None, None), "");
        assert_eq!(version(None, Some("8.0.1\n")), "8.0.1");
        assert_eq!(version(Some(" 8.x "), Some("7.0")), "8.x");
        assert_eq!(version(Some(""), Some("7.0")), "7.0");
    }
}
