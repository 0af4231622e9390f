//! The memory limit of an action, and the detection of kills by the kernel for lack of memory.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use model::Claimed;
use parking_lot::Mutex;
use sandbox::{Cause, Ended};

/// Exit code 128 + SIGKILL: of the command, or of the last program of its shell.
const KILLED: i32 = 137;
/// Maximum age of the machine's kill count at the start of an action.
const OLD: Duration = Duration::from_secs(1);

/// Memory limit of an action in bytes, where control groups are available. An action whose client asked for
/// memory, or that ran out of memory before, gets the larger of that and its size: an action that is packed by
/// the usage of similar ones must not be killed for using what it asked for. All others get what the settings
/// allow (`most`; `None` means no limit).
pub(crate) fn limit(claimed: &Claimed, most: Option<u64>) -> Option<u64> {
    let record = &claimed.record;
    let asked = record.execution.needs.memory_bytes.max(record.so_far.memory_bytes);
    let given = asked.map(|asked| asked.max(claimed.size.memory_bytes));
    given.into_iter().chain(most).min()
}

/// Counts the processes that the kernel killed on the whole machine for lack of memory.
pub(crate) struct OomKills {
    file: PathBuf,
    last: Mutex<Option<(Instant, u64)>>,
}

impl OomKills {
    /// Creates the counter; `proc` is the path of `/proc`.
    pub(crate) fn new(proc: &Path) -> Self {
        Self { file: proc.join("vmstat"), last: Mutex::default() }
    }

    /// A recent count: for [`OomKills::explain`], before an action starts.
    pub(crate) fn before(&self) -> u64 {
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

    /// Marks a command as out of memory if it was killed by an unknown process while the kernel killed some process
    /// for lack of memory. If the command has a control group, the sandbox has already determined this.
    pub(crate) fn explain(&self, ended: &mut Ended, before: u64) {
        if ended.cause == Cause::Ended && ended.exit_code == KILLED && self.count() > before {
            ended.cause = Cause::OutOfMemory;
        }
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
    use std::time::SystemTime;

    use super::*;
    use crate::testing;

    #[test]
    fn an_action_is_limited_to_what_it_asked_for_or_was_given_more() {
        let mut claimed = testing::claimed();
        claimed.size.memory_bytes = 100;
        assert_eq!(limit(&claimed, None), None);
        assert_eq!(limit(&claimed, Some(1000)), Some(1000));
        // Its size comes from the usage of similar actions.
        claimed.record.execution.needs.memory_bytes = Some(300);
        assert_eq!(limit(&claimed, None), Some(300));
        claimed.record.so_far.memory_bytes = Some(600);
        assert_eq!((limit(&claimed, None), limit(&claimed, Some(500))), (Some(600), Some(500)));
        claimed.size.memory_bytes = 800;
        assert_eq!(limit(&claimed, None), Some(800));
    }

    #[test]
    fn a_command_that_was_killed_while_the_kernel_killed_someone_ran_out_of_memory() {
        let proc = tempfile::tempdir().unwrap();
        let kills =
            |count: u32| fs::write(proc.path().join("vmstat"), format!("nr_free 7\noom_kill {count}\n"));
        kills(3).unwrap();
        let oom = OomKills::new(proc.path());
        let before = oom.before();
        let cause = |exit_code| {
            let mut ended = ended(exit_code);
            oom.explain(&mut ended, before);
            ended.cause
        };
        assert_eq!(cause(137), Cause::Ended);
        kills(4).unwrap();
        assert_eq!((cause(137), cause(1)), (Cause::OutOfMemory, Cause::Ended));
    }

    fn ended(exit_code: i32) -> Ended {
        let now = SystemTime::now();
        Ended {
            exit_code,
            signal: None,
            cause: Cause::Ended,
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            peak_memory_bytes: 0,
            started_at: now,
            ended_at: now,
            stdout_bytes: 0,
            stderr_bytes: 0,
        }
    }
}
