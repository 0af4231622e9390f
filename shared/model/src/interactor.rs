//! Interactors of a task or an action: a command that talks with its command over standard input and output.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{TaskLimits, service_request::is_command};

/// Maximum number of names in the path of an interactor's folder.
const DEPTH_MAX: usize = 200;

/// An interactor, as the author of a task writes it: a command that runs beside the own command in another sandbox. What one
/// writes to standard output, the other reads from standard input. The task succeeds if both exit with code 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InteractorRequest {
    /// Program to run, with its arguments.
    pub command: Vec<String>,
    /// Paths and globs of files and folders that it reads, as those of a task. The command of the task does not see them,
    /// unless they are also its inputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<String>,
    /// Environment variables. Those of the task are not passed on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Limits of the interactor. Default: `wall_ms` is 10 s longer than that of the command, the others come
    /// from the farm's settings.
    #[serde(default, skip_serializing_if = "TaskLimits::is_empty")]
    pub limits: TaskLimits,
}

/// An interactor, as an action has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Interactor {
    /// Program to run, with its arguments.
    pub command: Vec<String>,
    /// Folder of the action's input root that is the input root of the interactor. The command does not see it.
    /// Default: the interactor has no inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Environment variables of the interactor.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Limits of the interactor.
    #[serde(default, skip_serializing_if = "TaskLimits::is_empty")]
    pub limits: TaskLimits,
}

/// How the interactor of a task ended, and what it used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InteractorReport {
    /// Exit code of the interactor.
    pub exit_code: i32,
    /// Wall-clock run time in milliseconds.
    pub wall_ms: u64,
    /// CPU time in milliseconds.
    pub cpu_ms: u64,
    /// Peak memory in bytes.
    pub memory_bytes: u64,
}

/// An error in an interactor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {field} of the interactor is invalid: expected {expected}")]
pub struct InvalidInteractor {
    /// Name of the invalid field.
    pub field: &'static str,
    /// Description of what is valid.
    pub expected: &'static str,
}

impl Interactor {
    /// Checks all fields, each independently of the others.
    pub fn check(&self) -> Result<(), InvalidInteractor> {
        let wrong = |field, expected| Err(InvalidInteractor { field, expected });
        if !is_command(&self.command) {
            return wrong("command", "a program that is not empty, and arguments without NUL bytes");
        }
        let is_variable = |(name, value): (&String, &String)| {
            !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
        };
        if !self.env.iter().all(is_variable) {
            return wrong("env", "variables with a name without '=', and without NUL bytes");
        }
        if self.folder.as_deref().is_some_and(|folder| !is_folder(folder)) {
            return wrong("folder", "a relative path of a folder in the input root, such as tests/secret");
        }
        if self.limits.has_zero() {
            return wrong("limits", "numbers of at least 1");
        }
        Ok(())
    }
}

/// Whether a text is the path of a folder inside the input root.
fn is_folder(text: &str) -> bool {
    let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
    text.split('/').all(is_name) && text.split('/').count() <= DEPTH_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Interactor, String> {
        let interactor: Interactor = serde_json::from_str(json).map_err(|error| error.to_string())?;
        interactor.check().map_err(|error| error.to_string())?;
        Ok(interactor)
    }

    #[test]
    fn what_cannot_run_is_refused_with_its_field() {
        for (json, reason) in [
            (r#"{"command": []}"#, "command"),
            (r#"{"command": ["a\u0000"]}"#, "command"),
            (r#"{"command": ["a"], "folder": "../a"}"#, "folder"),
            (r#"{"command": ["a"], "folder": "/a"}"#, "folder"),
            (r#"{"command": ["a"], "folder": ""}"#, "folder"),
            (r#"{"command": ["a"], "env": {"": "x"}}"#, "env"),
            (r#"{"command": ["a"], "limits": {"cpu_ms": 0}}"#, "limits"),
            (r#"{"command": ["a"], "inputs": ["b"]}"#, "inputs"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(reason), "{json}: {error}");
        }
        let whole = r#"{"command":["a"],"folder":"b/c","env":{"D":"e"},"limits":{"wall_ms":9}}"#;
        assert_eq!(serde_json::to_string(&read(whole).unwrap()).unwrap(), whole);
    }
}
