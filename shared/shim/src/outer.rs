//! The processes of `forebay shim`: an outer process that creates the namespaces and waits, and an inner one,
//! `forebay shim --init MODE`, that does the work ([`crate::server`]).
//!
//! There are two because only a new process can enter a new PID namespace. The outer one stays, because the worker
//! can wait for it (when it ends, all are dead), because a container's first process may not reap foreign processes,
//! and because without namespaces it kills the processes left by a dead inner shim. It holds no end of the worker's
//! socket: when the inner shim dies, the worker notices at once.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, dup2_stdin, dup2_stdout, geteuid, setsid};

use crate::filter;
use crate::guardian::{self, Guardian};
use crate::id_maps;
use crate::model::Mode;
use crate::namespaces::{appear_as, unshare_as_own_user};
use crate::network;
use crate::options::{Cores, Options, Role, role};
use crate::overlay::mount_overlay;
use crate::probe;
use crate::server::{self, Tree};

/// The entry point of `forebay shim`. Call it before any thread is started, with the program's arguments unchanged:
/// it reads those after the first. Standard input must be the socket that [`crate::Shim`] passes.
pub fn main() -> ExitCode {
    // The worker logs what a shim prints to stderr.
    invariant::report_with(|site, what| eprintln!("forebay shim: impossible at {site}: {what}"));
    let result = match role(env::args_os().skip(2)) {
        Some(Role::Outer(options)) => outer(&options),
        Some(Role::Inner { mode, wrapped, options }) => inner(mode, wrapped, options),
        Some(Role::Namespace) => id_maps::hold(),
        Some(Role::Probe { network, question }) => probe::run(network, &question),
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
    // Own session: signals to the worker's process group do not reach it. Fails for a group's leader.
    let _ = setsid();
    server::pass_no_descriptors();
    for group in &options.join {
        // Writing zero moves the writer itself.
        let joined = OpenOptions::new().write(true).open(group).and_then(|mut file| file.write_all(b"0"));
        joined.map_err(|error| io::Error::other(format!("cannot enter {}: {error}", group.display())))?;
    }
    use_cores(&options.cores)?;
    if let Some(network) = options.network {
        network::enter(network)?;
    }
    if let Some(overlay) = &options.overlay {
        mount_overlay(overlay)?;
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
        // Without this end the inner shim exits.
        drop(link);
        inner.wait()?;
        return kept;
    }
    inner.wait()?;
    drop(link);
    if mode == Mode::Subreaper {
        // Orphans of a killed inner shim are children of this process now.
        Tree::new(mode).destroy(|_| ())?;
    }
    Ok(())
}

/// Limits this process, and all that it starts, to processors and memory.
fn use_cores(cores: &Cores) -> io::Result<()> {
    if !cores.processors.is_empty() {
        let mut processors = CpuSet::new();
        for core in &cores.processors {
            processors.set(usize::from(*core))?;
        }
        sched_setaffinity(Pid::from_raw(0), &processors)?;
    }
    if !cores.memory_nodes.is_empty() {
        // Some containers refuse it. Then Linux still uses the memory nearest to the processor first.
        let _ = server::bind_memory(&cores.memory_nodes);
    }
    Ok(())
}

/// Creates PID and mount namespaces for the children. As root without more; otherwise, or in a container without the
/// capability, inside a user namespace that keeps the user and group ids.
fn isolate() -> io::Result<()> {
    let namespaces = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
    if unshare(namespaces).is_err() {
        unshare_as_own_user(namespaces)?;
    } else if geteuid().is_root() {
        return Ok(());
    }
    // Another user has entered a user namespace, here or with a network, and would lose its rights at the next exec. Without
    // this one `/proc` stays as it is, which `mount_proc` tolerates; bubblewrap then looks for its processes in vain.
    let _ = server::keep_mount_right();
    Ok(())
}

/// Starts this executable again, through the wrapper if there is one. Its standard output is a socket whose other end
/// is returned: when this process dies, that end closes and the inner shim notices.
fn spawn_inner(mode: Mode, options: &Options) -> io::Result<(Child, UnixStream)> {
    let (link, held) = UnixStream::pair()?;
    let held = OwnedFd::from(held);
    // Not by name: another version may have replaced the file since.
    let (program, own) = ("/proc/self/exe", env::args_os().next().unwrap_or_default());
    let arguments = options.inner_arguments(mode);
    let child = match options.wrapper.split_first() {
        None => Command::new(program).arg0(own).arg("shim").args(arguments).stdout(held).spawn()?,
        Some((wrapper, first)) => {
            // Passed as a descriptor: the wrapper's file system may not contain the file.
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
    if let Some(inside) = options.inner_user {
        appear_as(inside)?;
    }
    if wrapped {
        // A command of the same user could change this program through /proc, or trace this process.
        prctl::set_dumpable(false)?;
        if let Some(filter) = options.filter {
            // Not before: the filters refuse user namespaces.
            filter::apply(filter)?;
        }
    }
    if mode == Mode::PidNamespace {
        // Set after the change of user, which clears it.
        prctl::set_pdeathsig(Signal::SIGKILL)?;
    }
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // If the outer process's death does not kill the inner one, a timer that kills the outer one would leave
    // orphans without an owner.
    let kernel_deadline = options.kernel_deadline && mode == Mode::PidNamespace;
    let guardian = Guardian::new(io::stdout().as_fd().try_clone_to_owned()?, kernel_deadline)?;
    // The copies close on exec; commands inherit this one as standard input.
    let null = null()?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    server::serve(socket, guardian, mode, options)
}

/// Mounts a `/proc` that shows the new namespace. A container may refuse it; then the old one
/// stays, which is harmless.
fn mount_proc() {
    let none: Option<&str> = None;
    // Slave, not private: file systems that the host unmounts later must not stay mounted here as long
    // as the shim lives.
    if mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none).is_ok() {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        // If it is refused, the old one stays.
        let _ = mount(Some("proc"), "/proc", Some("proc"), flags, none);
    }
}

fn null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}
