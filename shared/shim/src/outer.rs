//! How `forebay shim` comes to be: an outer process that makes the namespaces and waits, and an inner one,
//! `forebay shim --init MODE`, that does the work ([`crate::server`]).
//!
//! Whoever enters a new PID namespace must be a new process, hence two. The outer one stays, because it is
//! what the worker can wait for (when it ends, all are dead), because a container's first process may
//! not reap strangers, and because without namespaces it kills what a dead inner shim leaves behind. It
//! holds no end of the worker's socket: when the inner shim dies, the worker hears of it at once.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{dup2_stdin, dup2_stdout, getgid, getuid, setsid};

use crate::guardian::{self, Guardian};
use crate::model::Mode;
use crate::options::{Options, Role, role};
use crate::server::{self, Tree};

/// The whole of `forebay shim`. Call it before any thread is started, with the program's arguments untouched:
/// it reads those after the first. Standard input must be the socket that [`crate::Shim`] passes.
pub fn main() -> ExitCode {
    let result = match role(env::args_os().skip(2)) {
        Some(Role::Outer(options)) => outer(&options),
        Some(Role::Inner { mode, wrapped, options }) => inner(mode, wrapped, options),
        None => Err(io::Error::other("a shim is started by a worker, not by hand")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay shim: {error}");
            ExitCode::FAILURE
        }
    }
}

fn outer(options: &Options) -> io::Result<()> {
    // Own session: what is sent to the worker's process group does not end here. Refused to a group's leader.
    let _ = setsid();
    server::pass_no_descriptors();
    for group in &options.join {
        // Zero stands for the writer.
        let joined = OpenOptions::new().write(true).open(group).and_then(|mut file| file.write_all(b"0"));
        joined.map_err(|error| io::Error::other(format!("cannot enter {}: {error}", group.display())))?;
    }
    let mode = match options.mode {
        _ if !options.wrapper.is_empty() => Mode::PidNamespace,
        Some(Mode::Subreaper) => Mode::Subreaper,
        Some(Mode::PidNamespace) => isolate().map(|()| Mode::PidNamespace)?,
        None => isolate().map_or(Mode::Subreaper, |()| Mode::PidNamespace),
    };
    if mode == Mode::Subreaper {
        prctl::set_child_subreaper(true)?;
        server::default_child_signal()?;
    }
    let (mut inner, link) = spawn_inner(mode, options)?;
    dup2_stdin(null()?)?;
    let kept = guardian::keep(&link);
    if kept.is_err() {
        // Without us the inner shim ends.
        drop(link);
        inner.wait()?;
        return kept;
    }
    inner.wait()?;
    drop(link);
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

/// Starts this executable again, through the wrapper if there is one. Its standard output is a socket whose other
/// end is returned: when that closes with us, the inner shim knows.
fn spawn_inner(mode: Mode, options: &Options) -> io::Result<(Child, UnixStream)> {
    let (link, held) = UnixStream::pair()?;
    let held = OwnedFd::from(held);
    // Not by name: the file may have been replaced by another version since.
    let (program, own) = ("/proc/self/exe", env::args_os().next().unwrap_or_default());
    let arguments = options.inner_arguments(mode);
    let child = match options.wrapper.split_first() {
        None => Command::new(program).arg0(own).arg("shim").args(arguments).stdout(held).spawn()?,
        Some((wrapper, first)) => {
            // Passed open: in the wrapper's view of the file system it may have no name at all.
            let program = File::open(program)?;
            server::pass_descriptor(program.as_fd())?;
            let path = format!("/proc/self/fd/{}", program.as_raw_fd());
            Command::new(wrapper).args(first).arg(path).arg("shim").args(arguments).stdout(held).spawn()?
        }
    };
    Ok((child, link))
}

fn inner(mode: Mode, wrapped: bool, options: Options) -> io::Result<()> {
    server::pass_no_descriptors();
    match mode {
        Mode::PidNamespace => {
            if std::process::id() != 1 {
                return Err(io::Error::other("not the first process of its namespace"));
            }
            if !wrapped {
                mount_proc();
            }
            server::pass_no_rights();
        }
        Mode::Subreaper => prctl::set_child_subreaper(true)?,
    }
    if let Some(processes) = options.processes_max {
        setrlimit(Resource::RLIMIT_NPROC, processes, processes)?;
    }
    if let Some(user) = options.user {
        server::become_user(user)?;
    }
    if mode == Mode::PidNamespace {
        // After the change of user, which takes it back.
        prctl::set_pdeathsig(Signal::SIGKILL)?;
    }
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Where the outer process's death does not kill us, a timer that kills it would take its hold on orphans away.
    let kernel_deadline = options.kernel_deadline && mode == Mode::PidNamespace;
    let guardian = Guardian::new(io::stdout().as_fd().try_clone_to_owned()?, kernel_deadline)?;
    // The copies close on exec; what the commands inherit as standard input is this.
    let null = null()?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    server::serve(socket, guardian, mode, options.tidy)
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
