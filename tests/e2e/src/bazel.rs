//! Bazel as a client of the farm.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant, SystemTime},
};

use farm::{Guard, Process, alive, tool};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::process::Command;

use crate::{Place, Rig, Run, Spawn};

/// Options that make every action run on the farm, without a local fallback.
const REMOTE_OPTIONS: [&str; 5] = [
    "--spawn_strategy=remote",
    "--genrule_strategy=remote",
    "--remote_local_fallback=false",
    "--remote_timeout=60",
    "--jobs=16",
];
const LIMIT: Duration = Duration::from_secs(90);

/// Installed versions of Bazel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Version 4.2.3 from Debian.
    Four,
    /// Version 2.1.0, an old release.
    Two,
}

/// A Bazel with its own workspace and server, which ends when this is dropped.
#[derive(Debug)]
pub struct Bazel {
    program: PathBuf,
    startup: Vec<String>,
    workspace: PathBuf,
    base: PathBuf,
    logs: PathBuf,
    guard: Guard,
    runs: AtomicU32,
    version: Version,
}

/// A running command of Bazel.
#[derive(Debug)]
pub struct Running {
    process: Process,
    log: PathBuf,
    execution_root: PathBuf,
    began: Instant,
}

/// The folder of libraries with which Debian's Bazel has TLS; `None` when they are not installed.
fn libraries() -> Option<PathBuf> {
    let folder = tool("bazel").parent()?.parent()?.join("lib/bazel");
    folder.is_dir().then_some(folder)
}

impl Version {
    /// Whether this version can connect with TLS.
    pub fn has_tls(self) -> bool {
        self == Self::Two || libraries().is_some()
    }

    /// Returns the program of this version; `None` when it is not installed.
    pub fn find(self) -> Option<PathBuf> {
        let found = match self {
            Self::Four => tool("bazel"),
            Self::Two => tool("bazel-2.1"),
        };
        found.is_file().then_some(found)
    }
}

impl Bazel {
    /// Creates a Bazel with a new copy of the workspace `project` in this place.
    pub fn new(place: &Place, project: &str, version: Version) -> Self {
        let program = version.find();
        let program = program.unwrap_or_else(|| panic!("no {version:?}: run infra/tools/clients.sh --all"));
        let base = place.folder("bazel/base");
        let mut startup = vec![
            "--nohome_rc".to_owned(),
            format!("--output_user_root={}", place.folder("bazel/user").display()),
            format!("--output_base={}", base.display()),
            "--max_idle_secs=300".to_owned(),
            "--host_jvm_args=-XX:TieredStopAtLevel=1".to_owned(),
        ];
        let debian = fs::canonicalize(&program).is_ok_and(|real| real.ends_with("bazel-4"));
        if !debian {
            // Debian's Bazel finds its other files through the system's configuration file.
            startup.push("--nosystem_rc".to_owned());
        } else if let Some(folder) = libraries() {
            startup.push(format!("--host_jvm_args=-Djava.library.path={}", folder.display()));
        }
        Self {
            program,
            startup,
            workspace: place.workspace(project),
            base,
            logs: place.folder("bazel/logs"),
            guard: place.guard().clone(),
            runs: AtomicU32::new(0),
            version,
        }
    }

    /// Returns the folder of all that Bazel makes.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Returns the path of the workspace.
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Runs a command to its end without the farm.
    pub async fn local(&self, command: &str, args: &[&str]) -> Run {
        self.start(command, &[], args).finish().await
    }

    /// Runs `build` or `test` to its end on the farm.
    pub async fn remote(&self, rig: &Rig, command: &str, args: &[&str]) -> Run {
        self.start_remote(rig, command, args).finish().await
    }

    /// Starts `build` or `test` on the farm.
    pub fn start_remote(&self, rig: &Rig, command: &str, args: &[&str]) -> Running {
        let executor = format!("--remote_executor={}", rig.grpc());
        let options: Vec<&str> = REMOTE_OPTIONS.into_iter().chain([executor.as_str()]).collect();
        self.start(command, &options, args)
    }

    /// Removes all local build results.
    pub async fn clean(&self) {
        let run = self.start("clean", &[], &[]).finish().await;
        assert_eq!(run.code, 0, "{run}");
    }

    /// Starts a command of Bazel.
    pub fn start(&self, command: &str, options: &[&str], args: &[&str]) -> Running {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let log = self.logs.join(format!("{number}.json"));
        let mut process = Command::new(&self.program);
        process.args(&self.startup).arg(command).args(options);
        if matches!(command, "build" | "test") {
            process.arg(format!("--execution_log_json_file={}", log.display()));
        }
        process.args(args).current_dir(&self.workspace);
        // The caller's environment must not change the build.
        process.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", &self.logs);
        process.envs(libraries().map(|folder| ("LD_LIBRARY_PATH", folder)));
        let text = self.logs.join(format!("{number}.txt"));
        let process = Process::start(&format!("bazel {command}"), process, &text, &self.guard);
        let name = self.workspace.file_name().expect("a workspace has a name");
        let execution_root = self.base.join("execroot").join(name);
        Running { process, log, execution_root, began: Instant::now() }
    }
}

impl Running {
    /// Sends SIGINT, as Ctrl-C does.
    pub fn interrupt(&self) {
        self.process.signal(Signal::SIGINT);
    }

    /// Returns whether the command still runs.
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// Waits for the end of the command.
    pub async fn finish(mut self) -> Run {
        let status = self.process.wait_exit(LIMIT).await;
        Run {
            code: status.code().unwrap_or(-1),
            text: self.process.log_text(),
            spawns: Spawn::read_all(&self.log),
            took: self.began.elapsed(),
            ended: SystemTime::now(),
            execution_root: self.execution_root,
        }
    }
}

impl Bazel {
    /// Returns whether this version cancels its calls on Ctrl-C. The old one merely stops waiting: the farm notices
    /// when the client's server ends.
    pub fn cancels_calls(&self) -> bool {
        self.version != Version::Two
    }

    /// Stops the Bazel server.
    pub fn end_server(&self) {
        let pid = fs::read_to_string(self.base.join("server/server.pid.txt")).unwrap_or_default();
        let Ok(pid) = pid.trim().parse::<u32>() else { return };
        let Ok(id) = i32::try_from(pid) else { return };
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let _ = kill(Pid::from_raw(id), signal);
            let deadline = Instant::now() + Duration::from_secs(5);
            while alive(pid) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

impl Drop for Bazel {
    fn drop(&mut self) {
        self.end_server();
    }
}
