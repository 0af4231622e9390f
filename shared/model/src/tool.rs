//! What a build asks its tool to do: the part of its command by which it is costed and finds its workspace.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a build asks its build tool to do. Derived from the command line where the request does not say it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolCall {
    /// The tool's command: `build` or `test`; the program's name where a tool has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// Its flags; their order does not matter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
    /// Its targets, `path/to/package:name`; their order does not matter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// The version of the tool that the build needs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tool_version: String,
    /// The branch of the code repository.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub branch: String,
    /// Tags of its targets, `requires-gpu` say.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub tags: BTreeSet<String>,
    /// Rules of its targets, `swift_binary` say.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub rules: BTreeSet<String>,
}

/// Tools that take a command, flags and targets as Bazel does.
const BAZEL_LIKE: [&str; 4] = ["bazel", "bazelisk", "blaze", "buck2"];
/// Their flags whose value is the next argument.
const WITH_VALUE: [&str; 2] = ["-c", "-j"];

impl ToolCall {
    /// What `argv` asks: `bazel build --flag //a:b` and its kin as they read it; of any other program the
    /// arguments that start with a dash are its flags and the others its targets.
    pub fn of_command(argv: &[String]) -> Self {
        let Some((program, arguments)) = argv.split_first() else { return Self::default() };
        let program = program.rsplit('/').next().unwrap_or(program);
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

/// Whether a build starts in an empty workspace or in one that an earlier, similar build left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkspaceUse {
    /// Empty, and nothing is left.
    #[default]
    Fresh,
    /// What a similar build left, its files and its tool's server; and it leaves its own.
    Warm,
}

impl WorkspaceUse {
    /// Whether it is the default.
    pub fn is_fresh(&self) -> bool {
        *self == Self::Fresh
    }
}

/// How the workspace of a run was chosen (section 4.4 of the paper).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkspaceKind {
    /// Its last build had the same branch, flags, targets and tool version.
    Exact,
    /// Its last build shares a target or package with each of this build's targets.
    Prefix,
    /// There was none: an empty one.
    New,
}

impl WorkspaceKind {
    /// The public name.
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
