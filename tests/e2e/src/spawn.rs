//! Entries of Bazel's execution log.

use std::path::Path;

use serde::Deserialize;

/// Runner of an action that the farm ran.
pub const REMOTE: &str = "remote";
/// Runner of an action whose result was in the action cache.
pub const HIT: &str = "remote cache hit";

/// An action that ended.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub struct Spawn {
    /// Name of the strategy that ran the action.
    pub runner: String,
    /// Mnemonic of the kind of action.
    pub mnemonic: String,
    /// Message that Bazel displays for the action.
    pub progress_message: String,
    pub command_args: Vec<String>,
    /// Files that the action created.
    pub actual_outputs: Vec<Output>,
    /// Exit code of the command.
    pub exit_code: i32,
}

/// A file that an action created.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Output {
    /// Path relative to the execution root.
    pub path: String,
    pub digest: Digest,
}

/// Digest of a file's content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Digest {
    /// SHA-256 in hex; empty for an empty file.
    pub hash: String,
}

impl Spawn {
    /// Reads the spawns in a file of `--execution_log_json_file`: concatenated JSON objects.
    pub(crate) fn read_all(path: &Path) -> Vec<Self> {
        let text = std::fs::read(path).unwrap_or_default();
        let spawns = serde_json::Deserializer::from_slice(&text).into_iter();
        spawns.map(|spawn| spawn.expect("the execution log is JSON")).collect()
    }

    /// Returns whether it is the run of a test, whose outputs contain times.
    pub fn is_test(&self) -> bool {
        self.mnemonic == "TestRunner"
    }

    /// Returns whether its command contains the duration of a test, as measured by this run of Bazel.
    pub fn is_timed(&self) -> bool {
        self.command_args.first().is_some_and(|program| program.ends_with("/generate-xml.sh"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_log_of_several_objects() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log.json");
        let one = r#"{"commandArgs": ["a/generate-xml.sh", "x"], "mnemonic": "TestRunner", "runner": "remote",
            "actualOutputs": [{"path": "out", "digest": {"hash": "ab", "sizeBytes": "2"}}], "exitCode": 1}"#;
        std::fs::write(&log, format!("{one}{{}}\n{one}")).unwrap();
        let spawns = Spawn::read_all(&log);
        assert_eq!(spawns.len(), 3);
        assert!(spawns[0].is_test() && spawns[2].is_timed() && !spawns[1].is_test());
        assert_eq!((spawns[2].exit_code, spawns[0].actual_outputs[0].digest.hash.as_str()), (1, "ab"));
        assert_eq!(Spawn::read_all(&folder.path().join("none")), []);
    }
}
