//! The shim's half: one thread, one poll over the socket, the command's two pipes, SIGCHLD and the deadline.

mod alarm;
mod budget;
mod cleaner;
mod freeze;
mod limit_monitor;
mod outbox;
mod run;
mod spawn;
mod survivors;
mod sys;
mod traced;
mod tree;

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use invariant::{Present as _, impossible};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::filter::Filter;
use crate::frame::{self, HEADER, Reply, Request};
use crate::guardian::Guardian;
use crate::model::{
    Cause, Command, Deadline, Event, Exit, Limits, Mode, Moment, SpawnErrorKind, Stream, Switches,
};
use crate::options::Options;
use alarm::Alarm;
use cleaner::Cleaner;
use limit_monitor::LimitMonitor;
use outbox::Outbox;
use run::{Run, RunEnd, RunOptions};
use spawn::Streams;
use survivors::Survivors;
pub(crate) use sys::{
    become_user, bind_memory, default_child_signal, drop_rights, keep_mount_right, mount_mapped,
    pass_descriptor, pass_no_descriptors, pass_no_rights, start_loopback,
};
pub(crate) use tree::{Tree, own_cpu};

/// Maximum bytes read from the socket at once.
const READ_SIZE: usize = 16 * 1024;

/// Serves the worker at the other end of `socket` until that end or `guardian`'s closes; afterwards no process is
/// alive. Of `options`, those about commands apply.
pub(crate) fn serve(socket: UnixStream, guardian: Guardian, mode: Mode, options: Options) -> io::Result<()> {
    default_child_signal()?;
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    signals.thread_block()?;
    let children = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    socket.set_nonblocking(true)?;
    let mut server = Server {
        socket,
        guardian,
        children,
        alarm: Alarm::new()?,
        tree: Tree::new(mode),
        cleaner: Cleaner::new(options.tidy, options.shares_network),
        filter: options.filter,
        inbox: Vec::new(),
        files: Vec::new(),
        outbox: Outbox::new(),
        running: None,
        survivors: Survivors::None,
    };
    server.outbox.put_urgent(&Reply::Ready(mode));
    let result = server.serve();
    server.tree.destroy(|_| ())?;
    result
}

struct Server {
    socket: UnixStream,
    guardian: Guardian,
    children: SignalFd,
    alarm: Alarm,
    tree: Tree,
    cleaner: Cleaner,
    /// The filters of system calls that wrappers get.
    filter: Option<Filter>,
    inbox: Vec<u8>,
    /// Received descriptors whose request has not arrived yet.
    files: Vec<OwnedFd>,
    outbox: Outbox,
    running: Option<Run>,
    survivors: Survivors,
}

/// The descriptors that poll reported.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "one for each descriptor of the poll")]
struct Ready {
    /// The worker sent bytes or closed the socket.
    request: bool,
    /// The socket accepts bytes again.
    room: bool,
    child: bool,
    alarm: bool,
    orphaned: bool,
    stdout: bool,
    stderr: bool,
}

impl Server {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            let ready = self.wait()?;
            match self.handle_ready(&ready) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => return Ok(()),
                // The worker died: that is a normal end.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)) => {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Handles all ready descriptors: kills come before reads.
    fn handle_ready(&mut self, ready: &Ready) -> io::Result<ControlFlow<()>> {
        if ready.orphaned {
            return Ok(ControlFlow::Break(()));
        }
        if ready.alarm {
            self.alarm.clear();
            self.watch_deadline()?;
            self.watch_guardian()?;
        }
        if ready.request && self.receive()?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        if self.running.as_ref().and_then(|run| run.kill_at).is_some_and(|at| at <= Instant::now()) {
            self.end(Cause::Killed)?;
        }
        if let Some(over) = self.running.as_mut().and_then(|run| run.check_limits(&self.cleaner)) {
            self.end(Cause::OverLimit(over))?;
        }
        if let Survivors::Ending { number, at } = self.survivors
            && at <= Instant::now()
        {
            self.forget_now(number)?;
        }
        if let Some(run) = &mut self.running {
            if ready.stdout {
                run.read(Stream::Stdout, &mut self.outbox);
            }
            if ready.stderr {
                run.read(Stream::Stderr, &mut self.outbox);
            }
        }
        if ready.child {
            self.reap()?;
        }
        if ready.room || self.outbox.due().is_some_and(|due| due <= Instant::now()) {
            self.outbox.flush(&mut self.socket)?;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn wait(&self) -> io::Result<Ready> {
        let on_socket =
            if self.outbox.is_blocked() { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
        let output = |stream| {
            // Left out while the worker reads too slowly: poll would report a hang-up unconditionally.
            let run = self.running.as_ref().filter(|_| !self.outbox.is_full())?;
            Some(PollFd::new(run.output(stream)?, PollFlags::POLLIN))
        };
        let (stdout, stderr) = (output(Stream::Stdout), output(Stream::Stderr));
        let (has_stdout, has_stderr) = (stdout.is_some(), stderr.is_some());
        let mut descriptors = Vec::with_capacity(6);
        descriptors.extend([
            PollFd::new(self.socket.as_fd(), on_socket),
            PollFd::new(self.children.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.alarm.as_fd(), PollFlags::POLLIN),
            // Only the death of the other end is reported: answers are read at once.
            PollFd::new(self.guardian.as_fd(), PollFlags::empty()),
        ]);
        descriptors.extend(stdout);
        descriptors.extend(stderr);
        match poll(&mut descriptors, self.timeout()) {
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => return Ok(Ready::default()),
            Err(error) => return Err(error.into()),
        }
        let mut found = descriptors.iter().map(|descriptor| {
            descriptor.revents().present_or(PollFlags::empty(), "poll reports unknown events")
        });
        let mut next = || found.next().present_or(PollFlags::empty(), "poll reports too few descriptors");
        let (socket, child, alarm, guard) = (next(), next(), next(), next());
        Ok(Ready {
            request: socket.intersects(!PollFlags::POLLOUT),
            room: socket.contains(PollFlags::POLLOUT),
            child: !child.is_empty(),
            alarm: !alarm.is_empty(),
            orphaned: !guard.is_empty(),
            stdout: has_stdout && !next().is_empty(),
            stderr: has_stderr && !next().is_empty(),
        })
    }

    fn timeout(&self) -> PollTimeout {
        let kill_at = self.running.as_ref().and_then(|run| run.kill_at);
        let check_at = self.running.as_ref().and_then(Run::check_at);
        let all =
            self.outbox.due().into_iter().chain(kill_at).chain(check_at).chain(self.survivors.kill_at());
        let Some(next) = all.min() else { return PollTimeout::NONE };
        let wait = next.saturating_duration_since(Instant::now());
        // Rounded up, so that the last millisecond is not spent in a loop.
        let wait = wait.checked_add(Duration::from_micros(999)).unwrap_or(wait);
        PollTimeout::try_from(wait.as_millis()).unwrap_or(PollTimeout::MAX)
    }

    /// Reads and handles the worker's requests; breaks when the worker has ended.
    fn receive(&mut self) -> io::Result<ControlFlow<()>> {
        let end = self.inbox.len();
        self.inbox.resize(end + READ_SIZE, 0);
        let free: &mut [u8] = self.inbox.get_mut(end..).present("the inbox is shorter than before");
        let read = sys::receive(&self.socket, free, &mut self.files);
        self.inbox.truncate(end + read.as_ref().copied().unwrap_or_default());
        match read {
            Ok(0) => return Ok(ControlFlow::Break(())),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        let mut done = 0;
        while let Some(rest) = self.inbox.get(done..)
            && let Some((kind, length)) = frame::header(rest).map_err(io::Error::other)?
            && let Some(body) = rest.get(HEADER..HEADER + length)
        {
            let request = frame::request(kind, body).map_err(io::Error::other)?;
            done += HEADER + length;
            self.handle_request(request)?;
        }
        self.inbox.drain(..done);
        Ok(ControlFlow::Continue(()))
    }

    fn handle_request(&mut self, request: Request<'_>) -> io::Result<()> {
        let current = self.running.as_mut();
        match request {
            Request::Run { .. } if current.is_some() || self.survivors.kill_at().is_some() => {
                Err(io::Error::other("the worker started a command before the previous one ended"))
            }
            Request::Forget { .. } | Request::Hold { .. } if current.is_some() => {
                Err(io::Error::other("the worker asked to end or stop survivors while a command runs"))
            }
            Request::Run { run, files, stdin, keep, limits, command } => {
                let files = usize::from(files).min(self.files.len());
                let streams = Streams::of(self.files.drain(..files), stdin);
                self.start(&command, streams, (run, keep, limits))
            }
            Request::Forget { number, grace } => self.forget(number, grace),
            Request::Hold { number, hold } => self.hold(number, hold),
            Request::Measure { run: number } => {
                if let Some(run) = current.filter(|run| run.number == number) {
                    let measured = run.measure();
                    self.outbox.put_urgent(&Reply::Measured(number, measured));
                }
                Ok(())
            }
            Request::Renew { run: number, deadline } => match current {
                Some(run) if run.number == number => {
                    run.deadline = Some(deadline);
                    self.watch_deadline()?;
                    self.cover(Some(deadline))
                }
                Some(_) => Ok(()),
                None => self.renew_survivors(number, deadline),
            },
            Request::Kill { run: number, grace } => {
                match current.filter(|run| run.number == number) {
                    Some(_) if grace.is_zero() => self.end(Cause::Killed)?,
                    Some(run) => run.ask_to_end(grace)?,
                    None => {}
                }
                Ok(())
            }
        }
    }

    fn start(
        &mut self,
        command: &Command,
        streams: Streams,
        (number, keep, limits): (u64, bool, Limits),
    ) -> io::Result<()> {
        let started = Instant::now();
        if command.deadline.is_some_and(Deadline::has_passed) {
            self.report(&Event::Exited(never_started()));
            return Ok(());
        }
        if LimitMonitor::is_wanted(&limits) && !tree::is_visible() {
            let message = "cannot enforce limits: /proc does not show this namespace".to_owned();
            self.report(&Event::SpawnFailed { kind: SpawnErrorKind::Resources, message });
            return Ok(());
        }
        self.cover(command.deadline)?;
        let adopted_cpu = self.survivors.cpu();
        // A command inherits the signal mask, and shells would wait forever for a blocked signal.
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGCHLD);
        signals.thread_unblock()?;
        let spawned = spawn::spawn(command, streams, &limits, self.filter);
        signals.thread_block()?;
        match spawned {
            Ok(spawned) => {
                let event = Event::Started { pid: spawned.pid, at: Moment::now() };
                self.outbox.put(&Reply::Event(event));
                let options = RunOptions { number, deadline: command.deadline, keep, adopted_cpu, limits };
                let mut run = Run::new(options, started, spawned);
                // SIGCHLD was not received in the meantime.
                let is_over = run.reap()?;
                self.running = Some(run);
                if is_over {
                    return self.end(Cause::Ended);
                }
                self.watch_deadline()?;
            }
            Err(error) => {
                self.report(&Event::SpawnFailed { kind: error.kind, message: error.message });
            }
        }
        Ok(())
    }

    /// Ends the command if its deadline has passed, otherwise arms the alarm for it.
    fn watch_deadline(&mut self) -> io::Result<()> {
        let Some(run) = &self.running else { return self.watch_survivors() };
        if run.is_overdue() {
            return self.end(Cause::Deadline);
        }
        if let Some(deadline) = run.deadline {
            self.alarm.arm(deadline)?;
        }
        Ok(())
    }

    /// Makes the kernel enforce this deadline too.
    fn cover(&mut self, deadline: Option<Deadline>) -> io::Result<()> {
        self.guardian.cover(deadline)?;
        self.watch_guardian()
    }

    /// Updates the kernel's deadline, or arms the alarm for the time when it must be updated.
    fn watch_guardian(&mut self) -> io::Result<()> {
        let deadline = match &self.running {
            Some(run) => run.deadline,
            None => self.survivors.deadline(),
        };
        self.guardian.look(deadline)?;
        match self.guardian.look_at() {
            Some(at) => Ok(self.alarm.arm(at)?),
            None => Ok(()),
        }
    }

    fn reap(&mut self) -> io::Result<()> {
        // One read clears the signal, for any number of children.
        self.children.read_signal()?;
        let Some(run) = &mut self.running else { return self.reap_survivors() };
        if run.reap()? { self.end(Cause::Ended) } else { Ok(()) }
    }

    fn end(&mut self, cause: Cause) -> io::Result<()> {
        let Some(run) = self.running.take() else {
            impossible!("a command ends, but none runs");
            return Ok(());
        };
        let (keeps, number, deadline) = (run.keeps(cause), run.number, run.deadline);
        let RunEnd { exit, kept } = run.end(cause, self.tree, &self.cleaner, &mut self.outbox)?;
        if keeps || self.survivors != Survivors::None {
            self.survivors = if kept { Survivors::Alive { run: number, deadline } } else { Survivors::None };
            self.outbox.put(&Reply::Kept(kept));
        }
        // Survivors may use the folders.
        if !kept && !self.cleaner.clean() {
            self.outbox.put(&Reply::Spent);
        }
        self.report(&Event::Exited(exit));
        self.watch_deadline()
    }

    fn report(&mut self, event: &Event) {
        self.outbox.put_urgent(&Reply::Event(event.clone()));
    }
}

fn never_started() -> Exit {
    Exit {
        exit_code: None,
        signal: None,
        cause: Cause::Deadline,
        wall: Duration::ZERO,
        cpu: Duration::ZERO,
        peak_memory_bytes: 0,
        switches: Switches::default(),
    }
}
