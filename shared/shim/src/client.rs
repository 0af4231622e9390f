//! The worker's half: starts a shim, runs commands in it, and receives their events.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use invariant::Present as _;
use tokio::process::Child;
use tokio::sync::watch;

use crate::control::Control;
use crate::error::ShimError;
use crate::frame::{self, HEADER, MAX_BODY, Reply, Request};
use crate::link::Link;
use crate::model::{Command, Event, Limits, Measured, Mode};
use crate::options::{Files, Options};
use crate::own;

/// Output shorter than this, in bytes, is copied out of the receive buffer, so that a few bytes do
/// not keep it allocated.
const COPY_BELOW: usize = 4 * 1024;
/// Maximum bytes read from the socket at once.
const READ_SIZE: usize = 128 * 1024;

/// One shim process, which runs one command at a time. Dropping it closes the socket, upon which the shim kills
/// everything and exits; [`Shim::stop`] also waits for that.
#[derive(Debug)]
pub struct Shim {
    link: Arc<Link>,
    process: Child,
    /// Process ids of the shim itself, on the host; empty if they are unknown.
    own: Vec<u32>,
    mode: Mode,
    /// Received bytes of frames that were not handled yet.
    inbox: BytesMut,
    /// Where reads from the socket go first: a short command needs a hundred bytes of it.
    scratch: Box<[u8]>,
    /// Number of the latest command.
    run: u64,
    /// Whether the end of that command was not received yet.
    unfinished: bool,
    /// Whether a command left traces that cannot be removed.
    spent: bool,
    /// Whether a command left survivors.
    kept: bool,
    /// Number of the latest request to end the survivors, and of the latest one answered.
    forget: u64,
    forgotten: u64,
    /// The same of requests to stop the survivors or to let them go on.
    hold: u64,
    held: u64,
    /// The latest measurement, with the number of its command.
    measured: watch::Sender<(u64, Measured)>,
}

impl Shim {
    /// Starts `program shim`, whose `main` calls [`crate::main`], in the best mode that the machine allows.
    pub async fn start(program: &Path) -> Result<Self, ShimError> {
        Self::start_with(program, &Options::default()).await
    }

    /// Like [`Shim::start`], but only in this mode.
    pub async fn start_in(program: &Path, mode: Mode) -> Result<Self, ShimError> {
        Self::start_with(program, &Options { mode: Some(mode), ..Options::default() }).await
    }

    /// Like [`Shim::start`], with explicit options.
    pub async fn start_with(program: &Path, options: &Options) -> Result<Self, ShimError> {
        let failed = |source| ShimError::Start { program: program.to_owned(), source };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let link = Arc::new(Link::new(ours).map_err(failed)?);
        let mut command = tokio::process::Command::new(std::path::absolute(program).map_err(failed)?);
        command.arg("shim").args(options.outer_arguments());
        // Builds can read the shim's environment (`/proc/1/environ`); the worker's may hold secrets.
        command.env_clear().current_dir("/");
        let theirs = Stdio::from(OwnedFd::from(theirs));
        let process = command.stdin(theirs).stdout(Stdio::null()).spawn().map_err(failed)?;
        drop(command); // It holds the shim's end of the socket.
        let mode = Mode::Subreaper;
        let mut shim = Self {
            link,
            process,
            own: Vec::new(),
            mode,
            inbox: BytesMut::new(),
            scratch: vec![0; READ_SIZE].into_boxed_slice(),
            run: 0,
            unfinished: false,
            spent: false,
            kept: false,
            forget: 0,
            hold: 0,
            held: 0,
            forgotten: 0,
            measured: watch::Sender::default(),
        };
        match shim.receive().await? {
            Reply::Ready(mode) => {
                shim.mode = mode;
                // No command runs yet: all descendants of the first process belong to the shim.
                shim.own = shim.process.id().and_then(own::process_ids).unwrap_or_default();
            }
            early @ (Reply::Event(_)
            | Reply::Spent
            | Reply::Kept(_)
            | Reply::Forgotten(_)
            | Reply::Held(_)
            | Reply::Measured(..)) => {
                return Err(ShimError::Protocol(format!("{early:?} before it was ready")));
            }
        }
        Ok(shim)
    }

    /// How the shim tracks the processes of its commands.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Process id of the shim on the host (of its outer process, whose death ends all), while it lives.
    pub fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// User and system time of the shim's own processes, without its commands, while they live; `None` if the system
    /// does not provide it.
    pub fn own_cpu(&self) -> Option<Duration> {
        own::cpu(&self.own)
    }

    /// Whether a command left traces that the shim could not remove, so that the next command would not start from a
    /// clean state. Only a shim with [`Options::tidy`] checks this.
    pub fn is_spent(&self) -> bool {
        self.spent
    }

    /// Whether the shim is known to have ended. `false` proves nothing.
    pub fn is_gone(&mut self) -> bool {
        match read(self.link.stream().get_ref(), &mut self.scratch, &mut self.inbox) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Starts a command. If an earlier one was not followed to its end, that one is killed first.
    pub async fn run(&mut self, command: &Command) -> Result<Running<'_>, ShimError> {
        self.launch(command, None, false, &Limits::default()).await
    }

    /// Like [`Shim::run`], but when the command's own process exits without being killed, its
    /// other processes stay alive, and so do the survivors of earlier commands. The output ends
    /// with that process. See [`Shim::has_survivors`].
    ///
    /// The command's deadline continues to apply to its survivors, and can be moved by [`Control::renew`], until the
    /// next command: to keep them indefinitely, set it to [`Deadline::NEVER`].
    ///
    /// Processor time of survivors counts for the command during which they use it.
    pub async fn run_and_keep(&mut self, command: &Command) -> Result<Running<'_>, ShimError> {
        self.launch(command, None, true, &Limits::default()).await
    }

    /// Like [`Shim::run_and_keep`] with `keep`, else like [`Shim::run`], and restricted by `limits`.
    /// Survivors of earlier commands count, too.
    pub async fn run_limited(
        &mut self,
        command: &Command,
        keep: bool,
        limits: &Limits,
    ) -> Result<Running<'_>, ShimError> {
        self.launch(command, None, keep, limits).await
    }

    /// Like [`Shim::run`], with its output going into files, and restricted by `limits`.
    pub async fn run_into(
        &mut self,
        command: &Command,
        files: Files,
        limits: &Limits,
    ) -> Result<Running<'_>, ShimError> {
        self.launch(command, Some(files), false, limits).await
    }

    async fn launch(
        &mut self,
        command: &Command,
        files: Option<Files>,
        keep: bool,
        limits: &Limits,
    ) -> Result<Running<'_>, ShimError> {
        let stdin = files.as_ref().is_some_and(|files| files.stdin.is_some());
        let files: Vec<Arc<File>> = files.map(Files::in_order).unwrap_or_default();
        let mut frame = Vec::with_capacity(1024);
        let count = u8::try_from(files.len()).present("a command has more than five files");
        let (run, limits, command) = (self.run + 1, *limits, Cow::Borrowed(command));
        frame::put_request(&mut frame, &Request::Run { run, files: count, stdin, keep, limits, command });
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

    /// Like [`Shim::stop`], for borrowed shims: after [`ShimError::Gone`] the shim and its processes may still be
    /// dying. The shim runs no further command.
    pub async fn end(&mut self) -> Result<(), ShimError> {
        self.link.close();
        self.process.wait().await.map_err(ShimError::Socket)?;
        Ok(())
    }

    /// Whether a command left processes alive, according to the last report.
    pub fn has_survivors(&self) -> bool {
        self.kept
    }

    /// Ends the survivors: SIGTERM to all, and SIGKILL after `grace`; at once if `grace` is zero. Returns when none
    /// is alive. May be dropped and called again with another grace.
    pub async fn forget(&mut self, grace: Duration) -> Result<(), ShimError> {
        self.finish_command().await?;
        if !self.kept && self.forgotten == self.forget {
            return Ok(());
        }
        self.forget += 1;
        let number = self.forget;
        self.link.send(|out| frame::put_request(out, &Request::Forget { number, grace })).await?;
        self.finish_forgetting().await
    }

    /// Stops the survivors (`true`), so that they change no file, or lets them go on. Those that cannot be stopped within half
    /// a second are killed. Returns when that is done. May be dropped and called again.
    pub async fn hold(&mut self, hold: bool) -> Result<(), ShimError> {
        self.settle().await?;
        if !self.kept {
            return Ok(());
        }
        self.hold += 1;
        let number = self.hold;
        self.link.send(|out| frame::put_request(out, &Request::Hold { number, hold })).await?;
        while self.held < number {
            self.receive_event().await?;
        }
        Ok(())
    }

    /// Waits while no command runs; returns when the survivors have ended on their own, and fails when the shim has
    /// ended. May be dropped at any time.
    pub async fn idle(&mut self) -> Result<(), ShimError> {
        let had = self.kept;
        while self.kept == had {
            self.receive_event().await?;
        }
        Ok(())
    }

    /// Returns when every earlier request is finished and answered: a command that was not followed to its end is
    /// killed first. Afterwards [`Shim::is_spent`] is up to date. May be dropped and called again.
    pub async fn settle(&mut self) -> Result<(), ShimError> {
        self.finish_command().await?;
        self.finish_forgetting().await
    }

    async fn finish_command(&mut self) -> Result<(), ShimError> {
        if self.unfinished {
            let run = self.run;
            self.link
                .send(|out| frame::put_request(out, &Request::Kill { run, grace: Duration::ZERO }))
                .await?;
            while self.unfinished {
                self.next_event().await?;
            }
        }
        Ok(())
    }

    async fn finish_forgetting(&mut self) -> Result<(), ShimError> {
        while self.forgotten < self.forget {
            self.receive_event().await?;
        }
        Ok(())
    }

    async fn next_event(&mut self) -> Result<Event, ShimError> {
        loop {
            if let Some(event) = self.receive_event().await? {
                if matches!(event, Event::Exited(_) | Event::SpawnFailed { .. }) {
                    self.unfinished = false;
                }
                return Ok(event);
            }
        }
    }

    /// Receives one frame, which may contain an event of the command.
    async fn receive_event(&mut self) -> Result<Option<Event>, ShimError> {
        match self.receive().await? {
            Reply::Event(event) => return Ok(Some(event)),
            Reply::Spent => self.spent = true,
            Reply::Kept(kept) => self.kept = kept,
            Reply::Forgotten(number) => {
                self.forgotten = number;
                self.kept = false;
            }
            Reply::Held(number) => self.held = number,
            Reply::Measured(run, measured) => {
                self.measured.send_replace((run, measured));
            }
            Reply::Ready(_) => {
                return Err(ShimError::Protocol("it reported twice that it is ready".to_owned()));
            }
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
            let mut ready = self.link.stream().readable().await?;
            let Ok(count) = ready.try_io(|stream| read(stream.get_ref(), &mut self.scratch, &mut self.inbox))
            else {
                continue;
            };
            match count? {
                0 => return Err(ShimError::Gone),
                READ_SIZE => {}
                // The socket is empty: another read would only find that.
                _ => ready.clear_ready(),
            }
        }
    }

    fn take_body(&mut self, length: usize) -> Bytes {
        let mut frame = self.inbox.split_to(HEADER + length);
        let body = frame.split_off(HEADER);
        if length < COPY_BELOW { Bytes::copy_from_slice(&body) } else { body.freeze() }
    }
}

/// Reads once from the socket and appends what was read to the inbox.
fn read(mut stream: &UnixStream, scratch: &mut [u8], inbox: &mut BytesMut) -> io::Result<usize> {
    let count = stream.read(scratch)?;
    inbox.extend_from_slice(scratch.get(..count).present("more bytes were read than the buffer holds"));
    Ok(count)
}

impl Drop for Shim {
    fn drop(&mut self) {
        // A remaining `Control` must not keep the socket open.
        self.link.close();
    }
}

/// A running command. Dropping it before its end kills the command.
#[derive(Debug)]
pub struct Running<'shim> {
    shim: &'shim mut Shim,
}

impl Running<'_> {
    /// The next event; `None` after [`Event::Exited`] or [`Event::SpawnFailed`]. May be dropped and called
    /// again without losing events.
    pub async fn next_event(&mut self) -> Result<Option<Event>, ShimError> {
        if self.shim.unfinished { self.shim.next_event().await.map(Some) } else { Ok(None) }
    }

    /// Ends the shim and returns when all its processes are dead, as [`Shim::end`] does.
    pub async fn end_shim(&mut self) -> Result<(), ShimError> {
        self.shim.end().await
    }

    /// Same as [`Shim::own_cpu`], during a command.
    pub fn own_cpu(&self) -> Option<Duration> {
        self.shim.own_cpu()
    }

    /// Same as [`Shim::has_survivors`], during a command.
    pub fn has_survivors(&self) -> bool {
        self.shim.has_survivors()
    }

    /// A handle that other tasks can use to renew, measure or kill this command, and no other.
    pub fn control(&self) -> Control {
        let measured = self.shim.measured.subscribe();
        Control { link: Arc::clone(&self.shim.link), run: self.shim.run, measured }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.shim.unfinished {
            let run = self.shim.run;
            // If the socket is full, the next `run` sends the rest; if it is broken, all processes are dead.
            let _ = self
                .shim
                .link
                .push(|out| frame::put_request(out, &Request::Kill { run, grace: Duration::ZERO }));
        }
    }
}
