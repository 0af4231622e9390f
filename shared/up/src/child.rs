//! One child process: starts it, restarts it after an exit, and stops it.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use invariant::Present as _;
use nix::{
    fcntl::{Flock, FlockArg},
    sys::signal::Signal,
};
use service::sleep_until;
use tokio::{
    process::{Child, ChildStdin, Command},
    sync::{Notify, watch},
    task::JoinHandle,
    time::Instant,
};
use tracing::{info, warn};

use crate::{process, roster::Roster};

/// Specification of a child process.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// Name of the child, unique in the farm.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// Environment variables in addition to those of this process.
    pub(crate) env: BTreeMap<String, String>,
    /// File to which its output is appended.
    pub(crate) log: PathBuf,
    /// A file that stays locked while the child is running, so that no second one uses the same data.
    pub(crate) lock: Option<PathBuf>,
    /// Whether its standard input is a pipe that closes when this process ends.
    pub(crate) tethered: bool,
    /// Called after each exit: returns variables to add to `env` for the next start.
    pub(crate) remember: fn(&Spec) -> BTreeMap<String, String>,
}

/// An order for the task of a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Run,
    /// Send SIGTERM, then SIGKILL after this time.
    Stop(Duration),
    Kill,
}

/// Keeps one child running until it is stopped.
#[derive(Debug)]
pub(crate) struct Supervisor {
    spec: Spec,
    orders: watch::Sender<Order>,
    restart: Arc<Notify>,
    exits: watch::Receiver<Option<String>>,
    task: JoinHandle<()>,
}

const LOG_BYTES_MAX: u64 = 10 << 20;
const TAIL_BYTES: u64 = 4 << 10;
const TAIL_LINES: usize = 3;
const SHORT_LIFE: Duration = Duration::from_secs(5);
/// Time between SIGTERM and SIGKILL of a child that is restarted.
const RESTART_GRACE: Duration = Duration::from_secs(3);
const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);

impl Supervisor {
    /// Starts the child and the task that restarts it.
    pub(crate) fn start(spec: Spec, roster: Roster) -> Self {
        let (orders, inbox) = watch::channel(Order::Run);
        let (exit_sender, exits) = watch::channel(None);
        let restart = Arc::new(Notify::new());
        let task =
            SupervisorTask { spec: spec.clone(), roster, inbox, restart: restart.clone(), exit_sender };
        Self { spec, orders, restart, exits, task: tokio::spawn(task.run()) }
    }

    /// The name of the child.
    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }

    /// Waits until the child has exited once, and returns how.
    pub(crate) async fn exited(&self) -> String {
        let mut exits = self.exits.clone();
        match exits.wait_for(Option::is_some).await {
            Ok(how) => how.clone().present("the cause of an exit"),
            Err(_) => std::future::pending().await,
        }
    }

    /// Stops the child with SIGTERM, and SIGKILL after `grace`.
    pub(crate) fn stop(&self, grace: Duration) {
        // Fails only if the task has ended, and with it the child.
        let _ = self.orders.send(Order::Stop(grace));
    }

    /// A notification restarts the child. It is killed if it does not stop in time.
    pub(crate) fn restart_signal(&self) -> Arc<Notify> {
        self.restart.clone()
    }

    /// Kills the child immediately.
    pub(crate) fn kill(&self) {
        // Fails only if the task has ended, and with it the child.
        let _ = self.orders.send(Order::Kill);
    }

    /// Whether the child has exited and will not be restarted.
    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits until the child has exited and will not be restarted.
    pub(crate) async fn ended(&mut self) {
        if !self.task.is_finished() {
            let ended = (&mut self.task).await;
            if let Err(error) = ended {
                warn!(name = self.spec.name, %error, "the task of a child failed");
            }
        }
    }
}

/// State of the supervisor's task.
struct SupervisorTask {
    spec: Spec,
    roster: Roster,
    inbox: watch::Receiver<Order>,
    restart: Arc<Notify>,
    exit_sender: watch::Sender<Option<String>>,
}

impl SupervisorTask {
    async fn run(mut self) {
        let mut delay = Duration::ZERO;
        loop {
            let began = Instant::now();
            let how = match self.spawn() {
                Ok((child, log_start)) => match self.supervise(child).await {
                    None => return,
                    Some(status) => describe(status, &self.spec.log, log_start),
                },
                Err(error) => error.to_string(),
            };
            let lived = began.elapsed();
            delay = next_delay(delay, lived);
            let (name, seconds, pause) = (&self.spec.name, lived.as_secs_f64(), delay.as_secs_f64());
            warn!("{name} exited after {seconds:.1} s, restarting in {pause:.1} s: {how}");
            self.exit_sender.send_replace(Some(how));
            let remembered = (self.spec.remember)(&self.spec);
            self.spec.env.extend(remembered);
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                _ = self.inbox.wait_for(|order| *order != Order::Run) => return,
            }
        }
    }

    /// Starts the process. Returns it with the offset of its output in the log.
    fn spawn(&self) -> io::Result<(RunningChild, u64)> {
        let spec = &self.spec;
        let log = open_log(&spec.log).map_err(about(&spec.log))?;
        let start = log.metadata()?.len();
        let lock = spec.lock.as_deref().map(lock).transpose()?;
        let stdin = match &lock {
            None if spec.tethered => Stdio::piped(),
            None => Stdio::null(),
            Some(lock) => lock.try_clone()?.into(),
        };
        let mut child = Command::new(&spec.program)
            .args(&spec.args)
            .envs(&spec.env)
            .stdin(stdin)
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(about(&spec.program))?;
        let pid = child.id().present("the process id of a new child");
        self.roster.started(&spec.name, pid);
        info!(name = spec.name, pid, "started");
        let tether = child.stdin.take();
        Ok((RunningChild { child, pid, _lock: lock, _tether: tether }, start))
    }

    /// Waits until the process exits. `None` if it was ordered to stop.
    async fn supervise(&mut self, mut running: RunningChild) -> Option<ExitStatus> {
        let mut ordered_to_stop = false;
        let mut deadline: Option<Instant> = None;
        loop {
            tokio::select! {
                status = running.child.wait() => {
                    self.roster.ended(&self.spec.name);
                    if let Err(error) = &status {
                        warn!(name = self.spec.name, %error, "cannot wait for a child; it is not restarted");
                    }
                    return status.ok().filter(|_| !ordered_to_stop);
                }
                changed = self.inbox.changed() => {
                    ordered_to_stop = true;
                    let order = *self.inbox.borrow_and_update();
                    match order {
                        Order::Stop(grace) if changed.is_ok() => {
                            process::send(running.pid, Signal::SIGTERM);
                            deadline = Some(Instant::now() + grace);
                        }
                        // The supervisor was dropped, so the farm has ended.
                        Order::Run | Order::Stop(_) | Order::Kill => {
                            process::send(running.pid, Signal::SIGKILL);
                            return finish(running, &self.roster, &self.spec.name).await;
                        }
                    }
                }
                () = self.restart.notified(), if !ordered_to_stop && deadline.is_none() => {
                    process::send(running.pid, Signal::SIGTERM);
                    deadline = Some(Instant::now() + RESTART_GRACE);
                }
                () = sleep_until(deadline) => {
                    if !ordered_to_stop {
                        process::send(running.pid, Signal::SIGKILL);
                        deadline = Some(Instant::now() + RESTART_GRACE);
                        continue;
                    }
                    warn!(name = self.spec.name, "did not stop in time, killing it");
                    process::send(running.pid, Signal::SIGKILL);
                    return finish(running, &self.roster, &self.spec.name).await;
                }
            }
        }
    }
}

async fn finish(mut running: RunningChild, roster: &Roster, name: &str) -> Option<ExitStatus> {
    // How it ended does not matter, since it was killed.
    let _ = running.child.wait().await;
    roster.ended(name);
    None
}

/// A running process. Its process id is not reused until `child` has been waited for.
struct RunningChild {
    child: Child,
    pid: u32,
    _lock: Option<Flock<File>>,
    _tether: Option<ChildStdin>,
}

/// Exit status of a process with its last output, which is omitted after SIGKILL because it cannot explain it.
fn describe(status: ExitStatus, log: &Path, log_start: u64) -> String {
    match status.signal() {
        Some(signal) if signal == Signal::SIGKILL as i32 => status.to_string(),
        Some(_) | None => format!("{status}{}", tail(log, log_start)),
    }
}

/// Delay before the next start: none after a life of [`SHORT_LIFE`] or more, else exponential backoff.
fn next_delay(last: Duration, lived: Duration) -> Duration {
    if lived >= SHORT_LIFE { Duration::ZERO } else { (last * 2).clamp(DELAY_MIN, DELAY_MAX) }
}

/// Adds the path to an I/O error.
fn about(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn open_log(path: &Path) -> io::Result<File> {
    if path.metadata().is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
        fs::rename(path, path.with_extension("log.1"))?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

fn lock(path: &Path) -> io::Result<Flock<File>> {
    let file = disk::lock_file(path).map_err(about(path))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
        let error = io::Error::from(errno);
        if error.kind() == io::ErrorKind::WouldBlock {
            let what =
                format!("another process still uses the same data; find it with `fuser {}`", path.display());
            io::Error::new(error.kind(), what)
        } else {
            about(path)(error)
        }
    })
}

/// The last lines of a log after the offset `start`, each on a separate line.
fn tail(path: &Path, start: u64) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(start.max(end.saturating_sub(TAIL_BYTES))))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    };
    // The caller reports an exit; a log that cannot be read must not hide it.
    let text = read().unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines.iter().skip(lines.len().saturating_sub(TAIL_LINES)).flat_map(|line| ["\n  | ", line]).collect()
}

#[cfg(test)]
mod tests;
