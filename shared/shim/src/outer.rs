//! How `forebay shim` comes to be: an outer process that makes the namespaces and waits, and an inner one,
//! `forebay shim --init MODE`, that does the work ([`crate::server`]).
//!
//! Whoever enters a new PID namespace must be a new process, hence two. The outer one stays, because it is
//! what the worker can wait for (when it ends, all are dead), because a container's first process may
//! not reap strangers, and because without namespaces it kills what a dead inner shim leaves behind. It
//! holds no end of the worker's socket: when the inner shim dies, the worker hears of it at once.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, PipeReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{dup2_stdin, dup2_stdout, getgid, getuid, setsid};

use crate::model::Mode;
use crate::server::{self, Tree};

/// The whole of `forebay shim`. Call it before any thread is started, with the program's arguments untouched:
/// it reads those after the first. Standard input must be the socket that [`crate::Shim`] passes.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(2).collect();
    let arguments: Vec<_> = arguments.iter().map(|argument| argument.to_str().unwrap_or("?")).collect();
    let mode = |name: &str| Mode::from_name(name).ok_or_else(|| io::Error::other("no such mode"));
    let result = match arguments.as_slice() {
        [] => outer(None),
        ["--mode", name] => mode(name).and_then(|mode| outer(Some(mode))),
        ["--init", name] => mode(name).and_then(inner),
        _ => Err(io::Error::other("a shim is started by a worker, not by hand")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay shim: {error}");
            ExitCode::FAILURE
        }
    }
}

fn outer(wanted: Option<Mode>) -> io::Result<()> {
    // Own session: what is sent to the worker's process group does not end here. Refused to a group's leader.
    let _ = setsid();
    server::pass_no_descriptors();
    let mode = match wanted {
        Some(Mode::Subreaper) => Mode::Subreaper,
        Some(Mode::PidNamespace) => isolate().map(|()| Mode::PidNamespace)?,
        None => isolate().map_or(Mode::Subreaper, |()| Mode::PidNamespace),
    };
    if mode == Mode::Subreaper {
        prctl::set_child_subreaper(true)?;
        server::default_child_signal()?;
    }
    let (mut inner, guard) = spawn_inner(mode)?;
    dup2_stdin(null()?)?;
    inner.wait()?;
    drop(guard);
    if mode == Mode::Subreaper {
        // Orphans of a killed inner shim are ours now.
        Tree::new(mode).destroy(|_| ())?;
    }
    Ok(())
}

/// New PID and mount namespaces for the children to come. As root plainly; otherwise, or where a container
/// withholds the capability, inside a user namespace in which we remain who we are.
fn isolate() -> io::Result<()> {
    let namespaces = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
    let (uid, gid) = (getuid(), getgid());
    if unshare(namespaces).is_ok() {
        return Ok(());
    }
    unshare(namespaces | CloneFlags::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    // Without it `/proc` stays as it is, which `mount_proc` puts up with.
    let _ = server::keep_mount_right();
    Ok(())
}

/// Starts this executable again. Its standard output is a pipe whose other end is returned: when that closes
/// with us, the inner shim knows.
fn spawn_inner(mode: Mode) -> io::Result<(Child, PipeReader)> {
    let (guard, held) = io::pipe()?;
    let program = env::args_os().next().unwrap_or_default();
    // Not by name: the file may have been replaced by another version since.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(program).args(["shim", "--init", mode.name()]).stdout(held);
    Ok((command.spawn()?, guard))
}

fn inner(mode: Mode) -> io::Result<()> {
    match mode {
        Mode::PidNamespace => {
            if std::process::id() != 1 {
                return Err(io::Error::other("not the first process of its namespace"));
            }
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            mount_proc();
            server::pass_no_rights();
        }
        Mode::Subreaper => prctl::set_child_subreaper(true)?,
    }
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let guard: OwnedFd = io::stdout().as_fd().try_clone_to_owned()?;
    // The copies close on exec; what the commands inherit as standard input is this.
    let null = null()?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    server::serve(socket, guard, mode)
}

/// Shows the namespace's own processes in `/proc`. A container may refuse it; the old view does no harm then.
fn mount_proc() {
    let none: Option<&str> = None;
    // Slave, not private: what the host unmounts later must not stay mounted here for the shim's whole life.
    if mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none).is_ok() {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let _ = mount(Some("proc"), "/proc", Some("proc"), flags, none);
    }
}

fn null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}
