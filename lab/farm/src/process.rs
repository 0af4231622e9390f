//! A process with its own process group and log.

use std::{
    ffi::OsStr,
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use tokio::process::{Child, Command};

use crate::Guard;

/// A process that is killed, with its group, when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    pid: u32,
    log: PathBuf,
    guard: Guard,
}

impl Process {
    /// Starts `command` with its output appended to `log`.
    pub fn start(name: &str, mut command: Command, log: &Path, guard: &Guard) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(log).expect("the log can be written");
        let program = command.as_std().get_program().to_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle of the log"))
            .stderr(file)
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
        let pid = child.id().expect("a child that was not waited for has an id");
        guard.add(pid);
        Self { name: name.to_owned(), child, pid, log: log.to_owned(), guard: guard.clone() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id, also after its end.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends SIGKILL to this process only; its children must end on their own.
    pub fn kill9(&self) {
        self.signal(Signal::SIGKILL);
    }

    /// Sends SIGTERM to the process.
    pub fn term(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Sends SIGSTOP to the process.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Sends SIGCONT to the process.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Sends a signal, unless the process has been waited for.
    pub fn signal(&self, signal: Signal) {
        if self.child.id().is_some() {
            // The process may have ended.
            let _ = kill(pid(self.pid), signal);
        }
    }

    /// Returns whether the process runs.
    pub fn is_alive(&self) -> bool {
        self.child.id().is_some() && alive(self.pid)
    }

    /// Waits for the end of the process.
    pub async fn wait_exit(&mut self, limit: Duration) -> ExitStatus {
        let ended = tokio::time::timeout(limit, self.child.wait()).await.ok();
        let status =
            ended.unwrap_or_else(|| panic!("{} still runs after {limit:?}\n{}", self.name, self.log_tail()));
        status.expect("a child can be waited for")
    }

    /// Returns the exit status if the process has ended.
    pub fn try_exit(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Path of the log with its output.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Reads the whole log.
    pub fn log_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Reads the last lines of the log.
    pub fn log_tail(&self) -> String {
        tail(&self.log)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The group id stays ours until its leader is waited for, or while other processes are in it.
        let _ = killpg(pid(self.pid), Signal::SIGKILL);
        let deadline = Instant::now() + Duration::from_secs(5);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.guard.remove(self.pid);
    }
}

fn pid(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("process ids are small"))
}

/// Returns whether a process runs; a zombie does not.
pub fn alive(pid: u32) -> bool {
    start_ticks(pid).is_some()
}

/// Start time of a running process in ticks since boot: together with its id, it is unique.
pub fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Reads the last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.iter().skip(lines.len().saturating_sub(40));
    let name = log.file_name().unwrap_or(OsStr::new("log")).display();
    last.fold(format!("--- {name}\n"), |text, line| text + line + "\n")
}
