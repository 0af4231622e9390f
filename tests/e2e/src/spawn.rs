//! What Bazel's execution log says of an action.

use std::path::Path;

use serde::Deserialize;

/// The runner of an action that the farm ran.
pub const REMOTE: &str = "remote";
/// The runner of an action whose result was in the action cache.
pub const HIT: &str = "remote cache hit";

/// An action that ended.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub struct Spawn {
    /// Who ran it.
    pub runner: String,
    /// What kind it is.
    pub mnemonic: String,
    /// What Bazel calls it.
    pub progress_message: String,
    /// Its command.
    pub command_args: Vec<String>,
    /// What it made.
    pub actual_outputs: Vec<Output>,
    /// The exit code of its command.
    pub exit_code: i32,
}

/// A file that an action made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Output {
    /// Below the execution root.
    pub path: String,
    /// Its content.
    pub digest: Digest,
}

/// Content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Digest {
    /// SHA-256 in hex; empty for an empty file.
    pub hash: String,
}

impl Spawn {
    /// The spawns in a file that `--execution_log_json_file` wrote: one JSON object after the other.
    pub(crate) fn read_all(path: &Path) -> Vec<Self> {
        let text = std::fs::read(path).unwrap_or_default();
        let spawns = serde_json::Deserializer::from_slice(&text).into_iter();
        spawns.map(|spawn| spawn.expect("the execution log is JSON")).collect()
    }

    /// Whether it is a run of a test, whose outputs tell the time.
    pub fn is_test(&self) -> bool {
        self.mnemonic == "TestRunner"
    }

    /// Whether its command is made of how long a test took, as measured by this run of Bazel.
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
