//! Starts a command on the standard library's `posix_spawn` path: the shim does not fork and runs no code in the
//! child. Only a command with limits enforced by the kernel is forked.

use std::fs;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::resource::Resource;
use nix::unistd::{AccessFlags, access};

use super::sys::{self, ResourceLimit};
use crate::filter::{self, FILTER_DESCRIPTORS, Filter};
use crate::model::{Command, Limits, SpawnErrorKind};
use crate::options::{ARGUMENTS_DESCRIPTOR, STATUS_DESCRIPTOR};

/// Default search path when the environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The standard streams of a command.
#[derive(Debug)]
pub(crate) enum Streams {
    /// No input, and outputs to pipes that the shim reads.
    Pipes,
    /// Files, no input without one; those of a wrapper are its status and its arguments.
    Files { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd, wrapper: Option<[OwnedFd; 2]> },
}

impl Streams {
    /// Uses these files, in the order of their sending; pipes if there are none.
    pub(crate) fn of(mut files: impl Iterator<Item = OwnedFd>, has_stdin: bool) -> Self {
        let (Some(stdout), Some(stderr)) = (files.next(), files.next()) else { return Self::Pipes };
        let stdin = if has_stdin { files.next() } else { None };
        let wrapper = files.next().zip(files.next()).map(|(status, arguments)| [status, arguments]);
        Self::Files { stdin, stdout, stderr, wrapper }
    }
}

/// A command's own process and the non-blocking reading ends of its output pipes.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub(crate) pid: u32,
    pub(crate) stdout: Option<PipeReader>,
    pub(crate) stderr: Option<PipeReader>,
    /// Whether the command is a wrapper, which would die of a SIGTERM meant for the wrapped command.
    pub(crate) wrapper: bool,
}

/// Why a command could not be started.
#[derive(Debug)]
pub(crate) struct SpawnError {
    pub(crate) kind: SpawnErrorKind,
    pub(crate) message: String,
}

/// Passes the filters of system calls to the wrapper that is started next, as long as the result exists.
fn pass_filters(filter: Filter) -> io::Result<[sys::Passed; 2]> {
    let ([refused, missing], [first, second]) = (filter::files(filter)?, FILTER_DESCRIPTORS);
    Ok([sys::Passed::at(refused, first)?, sys::Passed::at(missing, second)?])
}

/// Passes its status file and its arguments to the wrapper that is started next, as long as the result exists.
fn pass_files([status, arguments]: [OwnedFd; 2]) -> io::Result<[sys::Passed; 2]> {
    Ok([sys::Passed::at(status, STATUS_DESCRIPTOR)?, sys::Passed::at(arguments, ARGUMENTS_DESCRIPTOR)?])
}

/// Starts a command in its own process group; `filter`: a wrapper gets filters of system calls.
pub(crate) fn spawn(
    command: &Command,
    streams: Streams,
    limits: &Limits,
    filter: Option<Filter>,
) -> Result<Spawned, SpawnError> {
    let Some((name, arguments)) = command.argv.split_first() else {
        return Err(error(SpawnErrorKind::InvalidInput, "the command is empty".to_owned()));
    };
    let program = find(name, command)?;
    let no_pipe =
        |source: io::Error| error(kind_of(&source), format!("cannot create a pipe for `{name}`: {source}"));
    let (read, ends, own) = match streams {
        Streams::Files { stdin, stdout, stderr, wrapper } => {
            // Without a file it is the shim's own, /dev/null.
            let stdin = stdin.map_or_else(Stdio::inherit, Stdio::from);
            ([None, None], [stdin, stdout.into(), stderr.into()], wrapper)
        }
        Streams::Pipes => {
            let (stdout, stdout_end) = pipe().map_err(no_pipe)?;
            let (stderr, stderr_end) = pipe().map_err(no_pipe)?;
            ([Some(stdout), Some(stderr)], [Stdio::inherit(), stdout_end.into(), stderr_end.into()], None)
        }
    };
    let ([stdout, stderr], [stdin_end, stdout_end, stderr_end]) = (read, ends);
    let wrapper = own.is_some();
    let _passed = own.map(pass_files).transpose().map_err(no_pipe)?;
    let no_filter =
        |source| error(kind_of(&source), format!("cannot filter the calls of `{name}`: {source}"));
    let _filters = filter.filter(|_| wrapper).map(pass_filters).transpose().map_err(no_filter)?;
    // The program is given as a path because a search in the command's PATH would make the standard library fork.
    let mut call = std::process::Command::new(&program);
    call.arg0(name)
        .args(arguments)
        .env_clear()
        .envs(command.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&command.cwd)
        .stdin(stdin_end)
        .stdout(stdout_end)
        .stderr(stderr_end)
        .process_group(0);
    let kernels = kernels(limits);
    if kernels.iter().any(Option::is_some) {
        sys::confine(&mut call, kernels);
    }
    let child = call.spawn().map_err(|source| explain(&source, &program, command))?;
    Ok(Spawned { pid: child.id(), stdout, stderr, wrapper })
}

/// The limits that the kernel enforces, for each process alone. They also apply when the shim cannot check in time.
fn kernels(limits: &Limits) -> [Option<ResourceLimit>; 3] {
    // Whole seconds, and later than the shim's check, which reports the reason: the kernel's first
    // signal may be caught.
    let cpu = limits.cpu.map(|cpu| cpu.as_secs().saturating_add(2));
    [
        cpu.map(|soft| ResourceLimit { resource: Resource::RLIMIT_CPU, soft, hard: soft.saturating_add(2) }),
        limits.file_bytes.map(|bytes| ResourceLimit::of(Resource::RLIMIT_FSIZE, bytes)),
        limits.user_processes.map(|processes| ResourceLimit::of(Resource::RLIMIT_NPROC, processes)),
    ]
}

fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    // The two ends have separate flags: the command's stays blocking.
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((reader, writer))
}

/// The path to execute for `name`, as execvp would find it.
fn find(name: &str, command: &Command) -> Result<PathBuf, SpawnError> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let path = command.env.iter().rev().find(|(variable, _)| variable == "PATH");
    let path = path.map_or(DEFAULT_PATH, |(_, value)| value.as_str());
    let mut closed = None;
    for directory in path.split(':') {
        // An empty or relative directory is relative to the working directory.
        let candidate = command.cwd.join(directory).join(name);
        if access(&candidate, AccessFlags::X_OK).is_ok() && candidate.is_file() {
            return Ok(candidate);
        }
        if candidate.is_file() {
            closed.get_or_insert(candidate);
        }
    }
    Err(closed.map_or_else(
        || error(SpawnErrorKind::NotFound, format!("`{name}` not found in PATH: {}", brief_path(path))),
        |candidate| {
            error(SpawnErrorKind::PermissionDenied, format!("{} is not executable", candidate.display()))
        },
    ))
}

/// The first folders of a search path, and the number of further ones.
fn brief_path(path: &str) -> String {
    const SHOWN: usize = 3;
    let folders: Vec<&str> = path.split(':').collect();
    let shown = folders.iter().take(SHOWN).copied().collect::<Vec<_>>().join(":");
    match folders.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The system's error number does not distinguish program and directory: find out.
fn explain(source: &io::Error, program: &Path, command: &Command) -> SpawnError {
    let kind = kind_of(source);
    if matches!(kind, SpawnErrorKind::NotFound | SpawnErrorKind::PermissionDenied | SpawnErrorKind::Other)
        && let Err(why) = enter(&command.cwd)
    {
        let message = format!("cannot enter the working directory {}: {why}", command.cwd.display());
        return error(SpawnErrorKind::WorkingDirectory, message);
    }
    // Arguments are not included: they may be huge.
    let name = String::from_utf8_lossy(program.as_os_str().as_bytes());
    error(kind, format!("cannot run `{}`: {source}", name.escape_debug()))
}

fn enter(directory: &Path) -> io::Result<()> {
    if !fs::metadata(directory)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(access(directory, AccessFlags::X_OK)?)
}

fn kind_of(source: &io::Error) -> SpawnErrorKind {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => SpawnErrorKind::NotFound,
        Some(libc::EACCES | libc::EPERM) => SpawnErrorKind::PermissionDenied,
        Some(libc::E2BIG) => SpawnErrorKind::TooLarge,
        Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => SpawnErrorKind::Resources,
        None if source.kind() == io::ErrorKind::InvalidInput => SpawnErrorKind::InvalidInput,
        _ => SpawnErrorKind::Other,
    }
}

fn error(kind: SpawnErrorKind, message: String) -> SpawnError {
    SpawnError { kind, message }
}
