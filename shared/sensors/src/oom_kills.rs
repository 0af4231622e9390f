//! Detection of kills by the kernel for lack of memory.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Exit code 128 + SIGKILL: of a command, or of the last program of its shell.
const KILLED: i32 = 137;
/// Maximum age of the machine's kill count at the start of a command.
const OLD: Duration = Duration::from_secs(1);

/// Counts the processes that the kernel killed on the whole machine for lack of memory.
pub struct OomKills {
    file: PathBuf,
    last: Mutex<Option<(Instant, u64)>>,
}

impl OomKills {
    /// Creates the counter; `proc` is the path of `/proc`.
    pub fn new(proc: &Path) -> Self {
        Self { file: proc.join("vmstat"), last: Mutex::default() }
    }

    /// A recent count: for [`OomKills::explain`], before a command starts.
    pub fn before(&self) -> u64 {
        let mut last = self.last.lock();
        match *last {
            Some((at, count)) if at.elapsed() < OLD => count,
            _ => {
                let count = self.count();
                *last = Some((Instant::now(), count));
                count
            }
        }
    }

    /// Whether a command with this exit code was killed for lack of memory: it was killed by an unknown process while the
    /// kernel killed some process for that reason.
    pub fn explain(&self, exit_code: i32, before: u64) -> bool {
        exit_code == KILLED && self.count() > before
    }

    fn count(&self) -> u64 {
        // Kernels before 4.13 have no such line: then no kill is explained.
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_was_killed_while_the_kernel_killed_someone_ran_out_of_memory() {
        let proc = tempfile::tempdir().unwrap();
        let kills =
            |count: u32| fs::write(proc.path().join("vmstat"), format!("nr_free 7\noom_kill {count}\n"));
        kills(3).unwrap();
        let oom = OomKills::new(proc.path());
        let before = oom.before();
        assert!(!oom.explain(137, before));
        kills(4).unwrap();
        assert!(oom.explain(137, before) && !oom.explain(1, before));
    }
}
