//! The command `forebay up` in a separate process.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::{Duration, Instant},
};

use bus::{Bus, Patience};
use client::Client;
use credentials::Server;
use model::Endpoints;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{Guard, Output, Process, SOON, farm::bare_command};

/// A farm that `forebay up` runs. Stopped when dropped, and all remaining processes are killed.
#[derive(Debug)]
pub struct Up {
    process: Process,
    data: PathBuf,
}

const GONE_WITHIN: Duration = Duration::from_secs(15);

impl Up {
    /// Starts `forebay up` with its data in `folder`/up and only free ports; returns when it is up.
    pub async fn start(folder: &Path, guard: &Guard, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut up = Self::spawn(folder, guard, args, env);
        up.endpoints().await;
        up
    }

    /// Starts `forebay up` without waiting for it.
    pub fn spawn(folder: &Path, guard: &Guard, args: &[&str], env: &[(&str, &str)]) -> Self {
        let data = folder.join("up");
        fs::create_dir_all(&data).expect("the data folder");
        let mut command = bare_command(&["up", "--nats-port", "0", "--redis-port", "0", "--http-port", "0"]);
        if !args.contains(&"--grpc-port") {
            command.args(["--grpc-port", "0"]);
        }
        command.args(args).arg("--data").arg(&data);
        let folders = serde_json::json!([folder]).to_string();
        command.env("FOREBAY_MACHINE_LOCK", folder.join("machine-lock"));
        command.env("FOREBAY_CONTEXT_PATHS", folders).envs(env.iter().copied());
        let process = Process::start("up", command, &folder.join("up.log"), guard);
        Self { process, data }
    }

    /// Waits for its endpoints and returns them.
    pub async fn endpoints(&mut self) -> Endpoints {
        let deadline = Instant::now() + SOON;
        loop {
            let written = self.read_endpoints();
            if let Some(endpoints) = written.filter(|endpoints| endpoints.pid == self.process.pid()) {
                return endpoints;
            }
            let ended = self.process.try_exit();
            assert!(ended.is_none(), "forebay up ended with {ended:?}\n{}", self.process.log_tail());
            assert!(Instant::now() < deadline, "forebay up is not up\n{}", self.process.log_tail());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Reads `endpoints.json` as it is now.
    pub fn read_endpoints(&self) -> Option<Endpoints> {
        serde_json::from_slice(&fs::read(self.data.join("endpoints.json")).ok()?).ok()
    }

    /// Returns its child processes, by name.
    pub fn children(&self) -> BTreeMap<String, u32> {
        self.read_endpoints().map(|endpoints| endpoints.processes).unwrap_or_default()
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns the process of `forebay up` itself.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Creates a client of the farm's API.
    pub async fn client(&mut self) -> Client {
        let server = Server::nats_of(&self.endpoints().await);
        Client::new(Bus::connect(server, "test", Patience::Wait).await.expect("a valid URL"))
    }

    /// Runs `forebay ARGS --data DIR` to its end.
    pub async fn cli(&self, args: &[&str]) -> Output {
        let (command, rest) = args.split_first().expect("a command");
        let data = self.data.to_str().expect("the folder's name is text");
        let all: Vec<&str> = [command, "--data", data].into_iter().chain(rest.iter().copied()).collect();
        let mut command = bare_command(&all);
        command.env("XDG_STATE_HOME", self.data.with_file_name("state"));
        Output::of(command).await
    }

    /// Sends SIGTERM; returns the exit status.
    pub async fn stop(&mut self) -> ExitStatus {
        self.process.term();
        self.process.wait_exit(GONE_WITHIN).await
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = fs::read_dir(self.data.join("logs")).into_iter().flatten().flatten();
            logs.for_each(|log| eprint!("{}", crate::process::tail(&log.path())));
        }
        self.process.term();
        let deadline = Instant::now() + GONE_WITHIN;
        while self.process.try_exit().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.process.kill9();
        kill_all(&processes_naming(&self.data));
    }
}

/// Returns processes that name this path on the command line or in the environment, or work below
/// it; except the guard.
pub fn processes_naming(path: &Path) -> Vec<u32> {
    let wanted = path.as_os_str().as_encoded_bytes();
    let holds = |text: &[u8], part: &[u8]| text.windows(part.len()).any(|window| window == part);
    let names = |pid: &u32| {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let line = read("cmdline");
        let below = fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder.starts_with(path));
        (below || holds(&line, wanted) || holds(&read("environ"), wanted)) && !holds(&line, b"farm-guard")
    };
    let ids = fs::read_dir("/proc").expect("/proc").flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|pid| names(pid) && crate::alive(*pid)).collect()
}

fn kill_all(pids: &[u32]) {
    for pid in pids {
        // The process may have ended.
        let _ = kill(Pid::from_raw(i32::try_from(*pid).unwrap_or(i32::MAX)), Signal::SIGKILL);
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    while pids.iter().any(|pid| crate::alive(*pid)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}
