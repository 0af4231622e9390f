//! Processes that may not be children of this one: their start times, and stopping them.

use std::{fs, time::Duration};

use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::time::Instant;
use tracing::warn;

const LOOK: Duration = Duration::from_millis(10);

/// Start time of a running process in clock ticks since boot; together with the process id it is unique. `None` if
/// there is no such process, or if it is a zombie.
pub(crate) fn start_of(pid: u32) -> Option<u64> {
    start_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads the state (field 3) and the start time (field 22). Field 2, the name, may contain blanks and parentheses.
fn start_in(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Id of the current boot, since ticks restart at each boot.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Sends a signal. A missing process is not an error.
pub(crate) fn send(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid)
        && let Err(error) = kill(Pid::from_raw(pid), signal)
        && error != Errno::ESRCH
    {
        warn!(pid, %signal, %error, "cannot send a signal to a process");
    }
}

/// Stops processes that are not children of this one: SIGTERM, then SIGKILL for those still running after `grace`.
pub(crate) async fn end_all(processes: &[(u32, u64)], grace: Duration) {
    let living = || processes.iter().filter(|(pid, start)| start_of(*pid) == Some(*start));
    for (signal, wait) in [(Signal::SIGTERM, grace), (Signal::SIGKILL, Duration::from_secs(5))] {
        living().for_each(|(pid, _)| send(*pid, signal));
        let deadline = Instant::now() + wait;
        while living().next().is_some() && Instant::now() < deadline {
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{boot_id, end_all, start_in, start_of};
    use std::time::Duration;

    #[test]
    fn the_start_is_field_22_whatever_the_name() {
        let tail = "S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99123 8 9";
        assert_eq!(start_in(&format!("7 (a) b (c) {tail}")), Some(99123));
        assert_eq!(start_in(&format!("7 (x) {}", tail.replacen('S', "Z", 1))), None);
        assert_eq!(start_in("nonsense"), None);
    }

    #[test]
    fn this_process_lives() {
        assert!(start_of(std::process::id()).is_some());
        assert_eq!(start_of(u32::MAX), None);
        assert!(!boot_id().is_empty());
    }

    #[tokio::test]
    async fn ends_the_right_process_only() {
        let mut child = tokio::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = child.id().unwrap();
        let start = start_of(pid).unwrap();
        end_all(&[(pid, start + 1)], Duration::from_secs(1)).await;
        assert_eq!(start_of(pid), Some(start));
        end_all(&[(pid, start)], Duration::from_secs(1)).await;
        assert!(!child.wait().await.unwrap().success());
    }
}
