//! Helpers that the tests share.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::mkfifo;
use shim::{Command, Event, Exit, Mode, Running, Shim, Stream};
use tempfile::TempDir;

/// The executable that acts as `forebay`.
pub(crate) fn host() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_forebay-shim-host"))
}

/// Defines each test once for a PID namespace (or the best mode of the machine) and once for a subreaper.
macro_rules! in_both_modes {
    ($($test:ident)*) => {
        mod best_mode { $(#[tokio::test] async fn $test() { super::$test(None).await; })* }
        mod subreaper {
            $(#[tokio::test] async fn $test() { super::$test(Some(shim::Mode::Subreaper)).await; })*
        }
    };
}

/// A shim in this mode, or in the best one.
pub(crate) async fn shim(mode: Option<Mode>) -> Shim {
    match mode {
        Some(mode) => Shim::start_in(host(), mode).await,
        None => Shim::start(host()).await,
    }
    .unwrap()
}

/// A shell script without a deadline.
pub(crate) fn script(text: &str) -> Command {
    command(&["/bin/sh", "-c", text])
}

/// A command without a deadline.
pub(crate) fn command(argv: &[&str]) -> Command {
    let argv = argv.iter().map(|&argument| argument.to_owned()).collect();
    let path = ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned());
    Command { argv, env: vec![path], cwd: "/tmp".into(), deadline: None }
}

/// All events of one command.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) started: bool,
    pub(crate) output: Vec<(Stream, Vec<u8>)>,
    pub(crate) last: Option<Event>,
}

impl Outcome {
    pub(crate) fn all(&self, stream: Stream) -> Vec<u8> {
        self.output.iter().filter(|(of, _)| *of == stream).flat_map(|(_, data)| data.clone()).collect()
    }

    pub(crate) fn exit(&self) -> &Exit {
        match &self.last {
            Some(Event::Exited(exit)) => exit,
            other => panic!("expected an exit, got {other:?}"),
        }
    }
}

/// Follows a command to its end.
pub(crate) async fn finish(mut running: Running<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    let end = async {
        while let Some(event) = running.next_event().await.unwrap() {
            match event {
                Event::Started { .. } => outcome.started = true,
                Event::Output { stream, data } => outcome.output.push((stream, data.to_vec())),
                end @ (Event::Exited(_) | Event::SpawnFailed { .. }) => outcome.last = Some(end),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), end).await.expect("the command ends");
    outcome
}

/// Runs a command to its end.
pub(crate) async fn run(shim: &mut Shim, command: &Command) -> Outcome {
    finish(shim.run(command).await.unwrap()).await
}

/// Waits until the command has written this many bytes to its outputs.
pub(crate) async fn output(running: &mut Running<'_>, bytes: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < bytes {
        match running.next_event().await.unwrap() {
            Some(Event::Output { data, .. }) => all.extend_from_slice(&data),
            Some(Event::Started { .. }) => {}
            other => panic!("{other:?} before {bytes} bytes"),
        }
    }
    all
}

/// Shows whether a process and its descendants are alive: they hold a named pipe open for writing.
#[derive(Debug)]
pub(crate) struct Life {
    directory: TempDir,
    reader: File,
}

impl Life {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("life");
        mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).unwrap();
        Self { directory, reader }
    }

    /// A redirection for a shell's `exec`, which all its children inherit.
    pub(crate) fn hold(&self) -> String {
        format!("exec 9>{};", self.path().display())
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("life")
    }

    /// Whether a process holds the pipe at this moment.
    pub(crate) fn is_held(&mut self) -> bool {
        let mut buffer = [0; 1024];
        loop {
            match self.reader.read(&mut buffer) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    return true;
                }
            }
        }
    }

    /// Returns when no process holds the pipe any more; fails after half a minute.
    pub(crate) async fn ended(self) {
        let waiting = tokio::task::spawn_blocking(move || {
            let mut descriptors = [PollFd::new(self.reader.as_fd(), PollFlags::empty())];
            poll(&mut descriptors, PollTimeout::from(30_000_u16)).unwrap()
        });
        assert_eq!(waiting.await.unwrap(), 1, "a process is still alive");
    }
}
