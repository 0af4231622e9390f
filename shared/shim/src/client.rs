//! The worker's half: starts a shim, has it run commands, hears of them.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::watch;

use crate::frame::{self, HEADER, MAX_BODY, Malformed, Reply};
use crate::link::Link;
use crate::model::{Command, Event, Limits, Measured, Mode};
use crate::options::{Files, Options};
use crate::own;
use crate::running::Running;

/// Output shorter than this, in bytes, is copied out of the receive buffer: a few kept bytes must not pin it.
const COPY_BELOW: usize = 4 * 1024;
/// Bytes asked of the socket at once.
const READ_SIZE: usize = 128 * 1024;
/// Room in the buffer below which it is made larger: less would cut long output into small reads.
const READ_LEAST: usize = 16 * 1024;

/// Why a shim could not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// The shim could not be started.
    #[error("the shim {program} could not be started")]
    Start {
        /// The program that was to be the shim.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The shim is dying, and with it every process of its command: [`Shim::end`] returns when they are dead.
    #[error("the shim is gone")]
    Gone,
    /// The socket to the shim failed.
    #[error("the socket to the shim failed")]
    Socket(#[source] io::Error),
    /// What came was no word of a shim.
    #[error("the shim sent nonsense: {0}")]
    Protocol(String),
    /// The command is larger than a shim takes; the system would refuse it too.
    #[error("the command takes {bytes} bytes, more than {limit}")]
    TooLarge {
        /// Its arguments, variables and directory together, in bytes.
        bytes: usize,
        /// The most that is taken, in bytes.
        limit: usize,
    },
}

impl From<io::Error> for ShimError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) => Self::Gone,
            _ => Self::Socket(error),
        }
    }
}

impl From<Malformed> for ShimError {
    fn from(malformed: Malformed) -> Self {
        Self::Protocol(malformed.to_string())
    }
}

/// One shim process, which runs one command at a time. Dropping it closes the socket, on which the shim
/// kills everything and ends; [`Shim::stop`] also waits for that.
#[derive(Debug)]
pub struct Shim {
    pub(crate) link: Arc<Link>,
    process: Child,
    /// The processes of the shim itself, by their numbers on the host; none if they are not known.
    own: Vec<u32>,
    mode: Mode,
    inbox: BytesMut,
    /// The number of the latest command.
    pub(crate) run: u64,
    /// Whether the end of that command has yet to be heard.
    pub(crate) unfinished: bool,
    /// Whether a command left something behind.
    spent: bool,
    /// Whether a command left survivors.
    kept: bool,
    /// The number of the latest request to forget them, and of the latest that was answered.
    forget: u64,
    forgotten: u64,
    /// The latest measurement, and of which command.
    pub(crate) measured: watch::Sender<(u64, Measured)>,
}

impl Shim {
    /// Starts `program shim`, whose `main` calls [`crate::main`], in the best mode that the machine allows.
    pub async fn start(program: &Path) -> Result<Self, ShimError> {
        Self::start_with(program, &Options::default()).await
    }

    /// Like [`Shim::start`], in this mode and no other.
    pub async fn start_in(program: &Path, mode: Mode) -> Result<Self, ShimError> {
        Self::start_with(program, &Options { mode: Some(mode), ..Options::default() }).await
    }

    /// Like [`Shim::start`], made to measure.
    pub async fn start_with(program: &Path, options: &Options) -> Result<Self, ShimError> {
        let failed = |source| ShimError::Start { program: program.to_owned(), source };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let stream = UnixStream::from_std(ours).map_err(failed)?;
        let mut command = tokio::process::Command::new(std::path::absolute(program).map_err(failed)?);
        command.arg("shim").args(options.outer_arguments());
        // The shim's environment can be read by the builds (`/proc/1/environ`); the worker's may hold secrets.
        command.env_clear().current_dir("/");
        let theirs = Stdio::from(OwnedFd::from(theirs));
        let process = command.stdin(theirs).stdout(Stdio::null()).spawn().map_err(failed)?;
        drop(command); // It holds the shim's end of the socket.
        let link = Arc::new(Link::new(stream));
        let inbox = BytesMut::with_capacity(READ_SIZE);
        let mode = Mode::Subreaper;
        let mut shim = Self {
            link,
            process,
            own: Vec::new(),
            mode,
            inbox,
            run: 0,
            unfinished: false,
            spent: false,
            kept: false,
            forget: 0,
            forgotten: 0,
            measured: watch::Sender::default(),
        };
        match shim.receive().await? {
            Reply::Ready(mode) => {
                shim.mode = mode;
                // No command runs yet: all that descends from the first process is the shim's own.
                shim.own = shim.process.id().and_then(own::family).unwrap_or_default();
            }
            early @ (Reply::Event(_)
            | Reply::Spent
            | Reply::Kept(_)
            | Reply::Forgotten(_)
            | Reply::Measured(..)) => {
                return Err(ShimError::Protocol(format!("{early:?} before it was ready")));
            }
        }
        Ok(shim)
    }

    /// How the shim holds on to the processes of its commands.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The host's process id of the shim (of its outer process, whose death ends all), while it lives.
    pub fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// User and system time of the shim's own processes and none of its commands', while they live; `None` where the
    /// system does not tell.
    pub fn own_cpu(&self) -> Option<Duration> {
        own::cpu(&self.own)
    }

    /// Whether a command left traces that the shim could not wipe out, so that the next would not be alone with
    /// what it was given. Only a shim with [`Options::tidy`] looks.
    pub fn is_spent(&self) -> bool {
        self.spent
    }

    /// Whether it is known to be gone. That it is not known proves nothing.
    pub fn is_gone(&mut self) -> bool {
        match self.link.stream().try_read_buf(&mut self.inbox) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Starts a command. If an earlier one has not been followed to its end, that one is killed first.
    pub async fn run(&mut self, command: &Command) -> Result<Running<'_>, ShimError> {
        self.launch(command, Vec::new(), false, &Limits::default()).await
    }

    /// Like [`Shim::run`], but when the command's own process ends by itself, what else lives stays alive: what it
    /// started and what an earlier command left. Its outputs end with that process. See [`Shim::has_survivors`].
    ///
    /// The command's deadline goes on for what it leaves, and can be moved by [`Control::renew`], until the next command:
    /// whoever means to keep that for good, makes it [`Deadline::NEVER`].
    ///
    /// Processor time of survivors counts for the command during which they use it.
    pub async fn run_and_keep(&mut self, command: &Command) -> Result<Running<'_>, ShimError> {
        self.launch(command, Vec::new(), true, &Limits::default()).await
    }

    /// Like [`Shim::run`], with its outputs going into files, and kept to `limits`.
    pub async fn run_into(
        &mut self,
        command: &Command,
        files: Files,
        limits: &Limits,
    ) -> Result<Running<'_>, ShimError> {
        let Files { stdout, stderr, status } = files;
        self.launch(command, [stdout, stderr].into_iter().chain(status).collect(), false, limits).await
    }

    async fn launch(
        &mut self,
        command: &Command,
        files: Vec<OwnedFd>,
        keep: bool,
        limits: &Limits,
    ) -> Result<Running<'_>, ShimError> {
        let mut frame = Vec::with_capacity(1024);
        let count = u8::try_from(files.len()).unwrap_or_default();
        frame::put_run(&mut frame, self.run + 1, command, count, keep, limits);
        let bytes = frame.len() - HEADER;
        if bytes > MAX_BODY {
            return Err(ShimError::TooLarge { bytes, limit: MAX_BODY });
        }
        self.settle().await?;
        self.run += 1;
        self.unfinished = true;
        self.link.send_with(&frame, files).await?;
        Ok(Running { shim: self })
    }

    /// Ends the shim and returns when all its processes are dead.
    pub async fn stop(mut self) -> Result<(), ShimError> {
        self.end().await
    }

    /// Like [`Shim::stop`], for who only borrows it: a shim that is [`ShimError::Gone`] may still be dying, and its
    /// processes with it. It runs nothing more.
    pub async fn end(&mut self) -> Result<(), ShimError> {
        self.link.close();
        self.process.wait().await.map_err(ShimError::Socket)?;
        Ok(())
    }

    /// Whether something is alive that a command left, as far as was heard.
    pub fn has_survivors(&self) -> bool {
        self.kept
    }

    /// Ends what commands left alive: SIGTERM to all, and SIGKILL `grace` later; at once if `grace` is zero. Returns when
    /// nothing is alive. May be dropped and called again with another grace.
    pub async fn forget(&mut self, grace: Duration) -> Result<(), ShimError> {
        self.finish_command().await?;
        if !self.kept && self.forgotten == self.forget {
            return Ok(());
        }
        self.forget += 1;
        let number = self.forget;
        self.link.send(|out| frame::put_forget(out, number, grace)).await?;
        self.finish_forgetting().await
    }

    /// Listens while no command is under way; returns when survivors have ended by themselves, and fails when the shim is
    /// gone. May be dropped at any time.
    pub async fn idle(&mut self) -> Result<(), ShimError> {
        let had = self.kept;
        while self.kept == had {
            self.hear().await?;
        }
        Ok(())
    }

    /// Returns when whatever was started earlier is over and all was heard of it: a command that was not followed to its end
    /// is killed first. What [`Shim::is_spent`] says holds then. May be dropped and called again.
    pub async fn settle(&mut self) -> Result<(), ShimError> {
        self.finish_command().await?;
        self.finish_forgetting().await
    }

    async fn finish_command(&mut self) -> Result<(), ShimError> {
        if self.unfinished {
            let run = self.run;
            self.link.send(|out| frame::put_kill(out, run, Duration::ZERO)).await?;
            while self.unfinished {
                self.next_event().await?;
            }
        }
        Ok(())
    }

    async fn finish_forgetting(&mut self) -> Result<(), ShimError> {
        while self.forgotten < self.forget {
            self.hear().await?;
        }
        Ok(())
    }

    pub(crate) async fn next_event(&mut self) -> Result<Event, ShimError> {
        loop {
            if let Some(event) = self.hear().await? {
                if matches!(event, Event::Exited(_) | Event::SpawnFailed { .. }) {
                    self.unfinished = false;
                }
                return Ok(event);
            }
        }
    }

    /// Takes one frame, which may tell of the command.
    async fn hear(&mut self) -> Result<Option<Event>, ShimError> {
        match self.receive().await? {
            Reply::Event(event) => return Ok(Some(event)),
            Reply::Spent => self.spent = true,
            Reply::Kept(kept) => self.kept = kept,
            Reply::Forgotten(number) => {
                self.forgotten = number;
                self.kept = false;
            }
            Reply::Measured(run, measured) => drop(self.measured.send_replace((run, measured))),
            Reply::Ready(_) => return Err(ShimError::Protocol("ready twice".to_owned())),
        }
        Ok(None)
    }

    /// The next frame. Nothing is lost when the future is dropped: bytes stay in the inbox.
    async fn receive(&mut self) -> Result<Reply, ShimError> {
        loop {
            if let Some((kind, length)) = frame::header(&self.inbox)?
                && self.inbox.len() >= HEADER + length
            {
                return Ok(frame::reply(kind, self.take_body(length))?);
            }
            // A short command needs a hundred bytes: a fresh buffer for each would be its largest cost here.
            if self.inbox.capacity() - self.inbox.len() < READ_LEAST {
                self.inbox.reserve(READ_SIZE);
            }
            self.link.stream().readable().await?;
            match self.link.stream().try_read_buf(&mut self.inbox) {
                Ok(0) => return Err(ShimError::Gone),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn take_body(&mut self, length: usize) -> Bytes {
        let mut frame = self.inbox.split_to(HEADER + length);
        let body = frame.split_off(HEADER);
        if length < COPY_BELOW { Bytes::copy_from_slice(&body) } else { body.freeze() }
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        // A `Control` that is still held somewhere must not keep the socket open.
        self.link.close();
    }
}
