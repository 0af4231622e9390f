//! The process chromedriver, and the browsers that it starts.

use std::{
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

/// A chromedriver with its own port. Dropping it kills it and its browsers.
#[derive(Debug)]
pub(crate) struct Driver {
    process: Child,
    port: u16,
}

impl Driver {
    /// Starts a driver with this folder for temporary files, and waits until it says its port.
    pub(crate) fn start(temporary: &Path) -> Self {
        let mut command = Command::new(farm::tool("chromedriver"));
        // A browser that is killed leaves files there. It also writes to its home, which may be read-only.
        for folder in ["TMPDIR", "HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
            command.env(folder, temporary);
        }
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.process_group(0).spawn().expect("chromedriver: run `make clients`");
        let stdout = process.stdout.take().expect("the stdout of chromedriver");
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("started successfully on port"));
        let port =
            line.as_deref().and_then(|line| line.trim_end_matches('.').rsplit(' ').next()?.parse().ok());
        // Later lines would fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, port: port.expect("chromedriver to say its port") }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The browsers are in its process group.
        let group = i32::try_from(self.process.id()).expect("a process id");
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        let _ = self.process.wait();
    }
}
