//! Build tool calls: the part of a command that determines its estimated cost and its warm workspace.

use std::collections::{BTreeMap, BTreeSet};

use invariant::Present as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Call of a build tool. Derived from the command line if the request does not give it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolCall {
    /// Command of the tool, for example `build` or `test`; the program's name for tools without commands.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// Flags of the call, in any order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
    /// Targets such as `path/to/package:name`, in any order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// Version of the tool; empty if it does not matter.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tool_version: String,
    /// Branch of the code repository; empty if it does not matter.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub branch: String,
    /// Tags of the targets, for example `requires-gpu`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub tags: BTreeSet<String>,
    /// Rules of the targets, for example `swift_binary`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub rules: BTreeSet<String>,
}

/// What is known of the tool of a build before it runs, in addition to its request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolHints {
    /// Version that the build asks for by `USE_BAZEL_VERSION` or its file `.bazelversion`; empty if neither is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Tags that its targets had in their last build.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub tags: BTreeSet<String>,
    /// Rules of its targets in their last build.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub rules: BTreeSet<String>,
}

impl ToolHints {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Completes a tool call with what it does not state itself.
    pub(crate) fn complete(&self, call: &mut ToolCall) {
        if call.tool_version.is_empty() {
            call.tool_version.clone_from(&self.version);
        }
        if call.tags.is_empty() {
            call.tags.clone_from(&self.tags);
        }
        if call.rules.is_empty() {
            call.rules.clone_from(&self.rules);
        }
    }
}

/// What Bazel reported of its calls in a build.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolFacts {
    /// Version that ran last; empty if it is not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Tags and rules by target of the build's tool call; under the empty name if the call names no target.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub targets: BTreeMap<String, TargetFacts>,
}

/// Tags and rules of the targets that a target pattern names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TargetFacts {
    /// Their tags, such as `requires-gpu`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub tags: BTreeSet<String>,
    /// Their rules, such as `cc_test`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub rules: BTreeSet<String>,
}

impl TargetFacts {
    /// Whether there are neither tags nor rules.
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty() && self.rules.is_empty()
    }
}

/// Tools that accept a command, flags and targets like Bazel.
const BAZEL_LIKE: [&str; 4] = ["bazel", "bazelisk", "blaze", "buck2"];
/// Flags of these tools whose value is the next argument.
const WITH_VALUE: [&str; 2] = ["-c", "-j"];

impl ToolCall {
    /// Parses `argv`. Calls like `bazel build --flag //a:b` are read as Bazel reads them; for any other program,
    /// arguments that start with a dash are flags and all others are targets.
    pub fn of_command(argv: &[String]) -> Self {
        let Some((program, arguments)) = argv.split_first() else { return Self::default() };
        let program = program.rsplit('/').next().present_or(program, "the last name of a path");
        if !BAZEL_LIKE.contains(&program) {
            let (flags, targets) = arguments.iter().cloned().partition(|argument| argument.starts_with('-'));
            return Self { command: program.to_owned(), flags, targets, ..Self::default() };
        }
        let mut call = Self::default();
        let mut arguments = arguments.iter().peekable();
        while let Some(argument) = arguments.next() {
            if argument == "--" {
                call.targets.extend(arguments.cloned());
                break;
            }
            if WITH_VALUE.contains(&argument.as_str()) {
                let value = arguments.next().map(String::as_str).unwrap_or_default();
                call.flags.push(format!("{argument}={value}"));
            } else if argument.starts_with('-') {
                call.flags.push(argument.clone());
            } else if call.command.is_empty() {
                call.command.clone_from(argument);
            } else {
                call.targets.push(argument.clone());
            }
        }
        call
    }
}

/// Workspace in which a build starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkspaceUse {
    /// An empty workspace, which is emptied again afterwards.
    #[default]
    Fresh,
    /// A workspace left by a similar build, with its files and tool server; it is kept for the next such build.
    Warm,
}

impl WorkspaceUse {
    /// Whether this is `Fresh`, the default.
    pub fn is_fresh(&self) -> bool {
        *self == Self::Fresh
    }
}

/// How the workspace of an attempt was chosen (section 4.4 of the paper).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkspaceKind {
    /// Its last build had the same branch, flags, targets and tool version.
    Exact,
    /// Its last build shares a target or package with each target of this build.
    Prefix,
    /// No warm workspace matched, so that an empty one is used.
    New,
}

impl WorkspaceKind {
    /// Name in messages and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Prefix => "prefix",
            Self::New => "new",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> ToolCall {
        ToolCall::of_command(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn bazel_is_read_as_bazel_reads_it() {
        let call = call("/usr/bin/bazel --batch build -c opt --copt=-O2 a/b:t1 -- -//x:y");
        assert_eq!(call.command, "build");
        assert_eq!(call.flags, ["--batch", "-c=opt", "--copt=-O2"]);
        assert_eq!(call.targets, ["a/b:t1", "-//x:y"]);
    }

    #[test]
    fn of_any_other_program_the_dashes_tell() {
        let call = call("make -j2 all check");
        assert_eq!((call.command.as_str(), call.flags.len()), ("make", 1));
        assert_eq!(call.targets, ["all", "check"]);
        assert_eq!(ToolCall::of_command(&[]), ToolCall::default());
    }
}
