//! What ended builds showed about their tools, for later builds of the same sources.

use std::slice;

use model::{Build, TargetFacts, ToolFacts, ToolHints};

use crate::{hash::Hasher, recent::Recent, tool_facts::is_short, workspace::source_of};

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
            self.0.of(target_key(build, target)).clone_from(facts);
        }
    }

    /// What is known of the tool of `build` before it runs. `version_file` is the content of its file `.bazelversion`, if
    /// that is known; the variable `USE_BAZEL_VERSION` takes precedence.
    pub fn hints(&self, build: &Build, version_file: Option<&str>) -> ToolHints {
        let version = requested_version(build, version_file).to_owned();
        let mut hints = ToolHints { version, ..ToolHints::default() };
        let call = build.tool_call();
        let unnamed = String::new();
        let targets = if call.targets.is_empty() { slice::from_ref(&unnamed) } else { &call.targets };
        for facts in targets.iter().filter_map(|target| self.0.get(target_key(build, target))) {
            hints.tags.extend(facts.tags.iter().cloned());
            hints.rules.extend(facts.rules.iter().cloned());
        }
        hints
    }
}

fn requested_version<'a>(build: &'a Build, version_file: Option<&'a str>) -> &'a str {
    let variable = build.env.get(VERSION_VARIABLE).map(|version| version.trim());
    let file = version_file.and_then(|text| text.lines().next()).map(str::trim);
    variable.filter(|version| !version.is_empty()).or(file).filter(|version| is_short(version)).unwrap_or_default()
}

fn target_key(build: &Build, target: &str) -> u64 {
    let (kind, location) = source_of(&build.context);
    Hasher::new("tool.target").all([build.group.as_str(), kind, location]).text(target).key()
}
