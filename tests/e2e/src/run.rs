//! Result of a command of Bazel.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use crate::{HIT, REMOTE, Spawn, sha256};

/// A command of Bazel that ended.
#[derive(Debug, Clone)]
pub struct Run {
    /// Exit code of the command; -1 for a signal.
    pub code: i32,
    /// Everything that it wrote.
    pub text: String,
    /// Actions that ran or were found in the action cache.
    pub spawns: Vec<Spawn>,
    /// Duration of the command.
    pub took: Duration,
    /// Time of its exit.
    pub ended: SystemTime,
    /// Folder that the paths of outputs are relative to.
    pub execution_root: PathBuf,
}

impl Run {
    /// Returns the run, and panics unless it succeeded.
    #[must_use]
    pub fn ok(self) -> Self {
        self.ended(0)
    }

    /// Returns the run, and panics unless it ended with this exit code.
    #[must_use]
    pub fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self}");
        self
    }

    /// Parses the last line with Bazel's counts: `62 processes: 23 internal, 39 remote.`
    pub fn processes(&self) -> BTreeMap<&str, usize> {
        let lines = self.text.lines().rev();
        let counts = lines.filter_map(|line| {
            let (head, counts) = line.strip_prefix("INFO: ")?.split_once(": ")?;
            (head.ends_with(" processes") || head.ends_with(" process")).then_some(counts)
        });
        let counts = counts.take(1).flat_map(|line| line.trim_end_matches('.').split(", "));
        let counts = counts.filter_map(|count| count.split_once(' '));
        counts.filter_map(|(count, who)| Some((who, count.parse().ok()?))).collect()
    }

    /// Counts the actions by runner.
    pub fn runners(&self) -> BTreeMap<&str, usize> {
        self.spawns.iter().fold(BTreeMap::new(), |mut counts, spawn| {
            *counts.entry(spawn.runner.as_str()).or_default() += 1;
            counts
        })
    }

    /// Asserts that the farm ran every action, `count` in all, and that Bazel's own count agrees.
    #[track_caller]
    pub fn assert_all_remote(&self, count: usize) {
        assert_eq!(self.runners(), BTreeMap::from([(REMOTE, count)]), "{self}");
        let mut processes = self.processes();
        processes.remove("internal");
        assert_eq!(processes, BTreeMap::from([(REMOTE, count)]), "{self}");
    }

    /// Asserts that the farm ran all actions that were not in its action cache, and none ran locally.
    #[track_caller]
    pub fn assert_none_local(&self) {
        let local: Vec<&Spawn> =
            self.spawns.iter().filter(|spawn| spawn.runner != REMOTE && spawn.runner != HIT).collect();
        assert!(local.is_empty() && !self.spawns.is_empty(), "{local:#?}\n{self}");
    }

    /// Asserts that all `count` actions were in the action cache, except those whose command contains a time.
    #[track_caller]
    pub fn assert_all_hits(&self, count: usize) {
        self.assert_none_local();
        assert_eq!(self.spawns.len(), count, "{self}");
        let ran: Vec<&Spawn> =
            self.spawns.iter().filter(|spawn| spawn.runner != HIT && !spawn.is_timed()).collect();
        assert!(ran.is_empty(), "{ran:#?}\n{self}");
    }

    /// Returns the hashes of all outputs except those of tests, by path.
    pub fn hashes(&self) -> BTreeMap<&str, &str> {
        let spawns = self.spawns.iter().filter(|spawn| !spawn.is_test());
        let outputs = spawns.flat_map(|spawn| &spawn.actual_outputs);
        outputs.map(|output| (output.path.as_str(), output.digest.hash.as_str())).collect()
    }

    /// Counts the outputs on disk, and asserts that their hashes are correct.
    #[track_caller]
    pub fn on_disk(&self) -> usize {
        let there = |(path, hash): (&str, &str)| {
            let found = sha256(&self.execution_root.join(path))?;
            assert!(found == hash || hash.is_empty(), "{path} has {found}, not {hash}\n{self}");
            Some(())
        };
        self.hashes().into_iter().filter_map(there).count()
    }

    /// Returns whether an output whose path ends with `end` is on disk.
    pub fn has_on_disk(&self, end: &str) -> bool {
        let mut paths = self.hashes().into_keys().filter(|path| path.ends_with(end));
        paths.any(|path| Path::exists(&self.execution_root.join(path)))
    }

    /// Asserts that the command wrote this.
    #[track_caller]
    pub fn assert_says(&self, what: &str) {
        assert!(self.text.contains(what), "nothing about {what:?} in\n{self}");
    }
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit code {}, {:?}, after {:?}\n{}", self.code, self.runners(), self.took, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_bazel_counts() {
        let text = "INFO: 2 processes: 2 local.\nINFO: Elapsed time: 7.216s, Critical Path: 1.22s\n\
            INFO: 62 processes: 12 remote cache hit, 23 internal, 27 remote.\nINFO: Build completed: all done\n";
        let run = Run {
            code: 0,
            text: text.to_owned(),
            spawns: Vec::new(),
            took: Duration::ZERO,
            ended: SystemTime::UNIX_EPOCH,
            execution_root: PathBuf::new(),
        };
        assert_eq!(run.processes(), BTreeMap::from([("internal", 23), (HIT, 12), (REMOTE, 27)]));
    }
}
