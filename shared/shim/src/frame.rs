//! The frames on the socket between worker and shim: a kind byte, the body's length as u32, the body. All numbers are
//! little-endian. Both ends are the same executable, so there is no version.

mod limits;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, TryGetError};
use invariant::{Present as _, impossible};

use crate::model::{
    Cause, Command, Deadline, Event, Exit, Limits, Measured, Mode, Moment, SpawnErrorKind, Stream,
};
use limits::{get_limits, get_over, put_limits, put_over};

/// Bytes of the header before each body.
pub(crate) const HEADER: usize = 5;
/// Maximum output bytes in one frame.
pub(crate) const MAX_CHUNK: usize = 64 * 1024;
/// Maximum bytes of a body: larger commands exceed the kernel's limit too.
pub(crate) const MAX_BODY: usize = 8 * 1024 * 1024;

const RUN: u8 = 1;
const RENEW: u8 = 2;
const KILL: u8 = 3;
const FORGET: u8 = 4;
const MEASURE: u8 = 5;
const READY: u8 = 16;
const STARTED: u8 = 17;
const STDOUT: u8 = 18;
const STDERR: u8 = 19;
const EXITED: u8 = 20;
const SPAWN_FAILED: u8 = 21;
const SPENT: u8 = 22;
const KEPT: u8 = 23;
const FORGOTTEN: u8 = 24;
const MEASURED: u8 = 25;

/// Bytes that are not a valid frame.
#[derive(Debug, thiserror::Error)]
#[error("invalid frame: {0}")]
pub(crate) struct Malformed(&'static str);

impl From<TryGetError> for Malformed {
    fn from(_: TryGetError) -> Self {
        Self("it ends too early")
    }
}

/// A message from worker to shim. `run` numbers the commands of one shim, so that a late message about one command
/// cannot affect the next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// `files` descriptors came with it: standard output and error, then a wrapper's status file. With `keep`,
    /// processes that outlive the command's own process stay alive.
    Run {
        run: u64,
        files: u8,
        keep: bool,
        limits: Limits,
        command: Command,
    },
    Renew {
        run: u64,
        deadline: Deadline,
    },
    Kill {
        run: u64,
        grace: Duration,
    },
    /// Ends the survivors. Also numbered: only the last request is answered.
    Forget {
        number: u64,
        grace: Duration,
    },
    /// Requests a measurement of the command's usage.
    Measure {
        run: u64,
    },
}

/// A message from shim to worker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Ready(Mode),
    /// The command whose end is reported next left traces.
    Spent,
    /// Whether processes are left alive: by the command whose end is reported next, or by earlier ones if none runs.
    Kept(bool),
    /// Nothing is left alive, as the request of this number demanded.
    Forgotten(u64),
    /// Usage of the command of this number.
    Measured(u64, Measured),
    Event(Event),
}

/// The kind and body length of the frame at the start of `bytes`, if its header is complete.
pub(crate) fn header(mut bytes: &[u8]) -> Result<Option<(u8, usize)>, Malformed> {
    if bytes.len() < HEADER {
        return Ok(None);
    }
    let kind = bytes.try_get_u8()?;
    let length = usize::try_from(bytes.try_get_u32_le()?).unwrap_or(usize::MAX);
    if length > MAX_BODY {
        return Err(Malformed("it is longer than any frame may be"));
    }
    Ok(Some((kind, length)))
}

/// Appends a header whose length is set by [`close`].
pub(crate) fn open(out: &mut Vec<u8>, kind: u8) -> usize {
    let at = out.len();
    out.put_u8(kind);
    out.put_u32_le(0);
    at
}

/// Sets the length of the frame that starts at `at` and ends with `out`.
pub(crate) fn close(out: &mut [u8], at: usize) {
    let length = u32::try_from(out.len().saturating_sub(at + HEADER)).unwrap_or(u32::MAX);
    match out.get_mut(at + 1..at + HEADER) {
        Some(field) => field.copy_from_slice(&length.to_le_bytes()),
        None => impossible!("a frame has no header"),
    }
}

/// The frame kind for output on `stream`.
pub(crate) fn output_kind(stream: Stream) -> u8 {
    match stream {
        Stream::Stdout => STDOUT,
        Stream::Stderr => STDERR,
    }
}

fn framed(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let at = open(out, kind);
    body(out);
    close(out, at);
}

/// Appends a [`Request::Run`] with its command.
pub(crate) fn put_run(
    out: &mut Vec<u8>,
    run: u64,
    command: &Command,
    files: u8,
    keep: bool,
    limits: &Limits,
) {
    framed(out, RUN, |out| {
        out.put_u64_le(run);
        out.put_u8(files);
        out.put_u8(u8::from(keep));
        put_limits(out, limits);
        out.put_u64_le(command.deadline.map_or(u64::MAX, Deadline::as_millis));
        put_bytes(out, command.cwd.as_os_str().as_bytes());
        put_count(out, command.argv.len());
        command.argv.iter().for_each(|argument| put_bytes(out, argument.as_bytes()));
        put_count(out, command.env.len());
        for (name, value) in &command.env {
            put_bytes(out, name.as_bytes());
            put_bytes(out, value.as_bytes());
        }
    });
}

/// Appends a [`Request::Renew`] for one command.
pub(crate) fn put_renew(out: &mut Vec<u8>, run: u64, deadline: Deadline) {
    framed(out, RENEW, |out| {
        out.put_u64_le(run);
        out.put_u64_le(deadline.as_millis());
    });
}

/// Appends a [`Request::Kill`] for one command.
pub(crate) fn put_kill(out: &mut Vec<u8>, run: u64, grace: Duration) {
    framed(out, KILL, |out| {
        out.put_u64_le(run);
        put_duration(out, grace);
    });
}

/// Appends a [`Request::Forget`] with its number.
pub(crate) fn put_forget(out: &mut Vec<u8>, number: u64, grace: Duration) {
    framed(out, FORGET, |out| {
        out.put_u64_le(number);
        put_duration(out, grace);
    });
}

/// Appends a [`Request::Measure`] for one command.
pub(crate) fn put_measure(out: &mut Vec<u8>, run: u64) {
    framed(out, MEASURE, |out| out.put_u64_le(run));
}

/// Appends a [`Reply`]. Output is usually written through [`open`] and [`close`], but is accepted here too.
pub(crate) fn put_reply(out: &mut Vec<u8>, reply: &Reply) {
    match reply {
        Reply::Ready(mode) => framed(out, READY, |out| out.put_u8(u8::from(*mode == Mode::Subreaper))),
        Reply::Spent => framed(out, SPENT, |_| ()),
        Reply::Kept(kept) => framed(out, KEPT, |out| out.put_u8(u8::from(*kept))),
        Reply::Forgotten(number) => framed(out, FORGOTTEN, |out| out.put_u64_le(*number)),
        Reply::Measured(run, measured) => framed(out, MEASURED, |out| {
            out.put_u64_le(*run);
            put_duration(out, measured.cpu);
            out.put_u64_le(measured.memory_bytes);
        }),
        Reply::Event(Event::Started { pid, at }) => framed(out, STARTED, |out| {
            out.put_u32_le(*pid);
            put_duration(out, at.0);
        }),
        Reply::Event(Event::Output { stream, data }) => {
            framed(out, output_kind(*stream), |out| out.put_slice(data));
        }
        Reply::Event(Event::Exited(exit)) => framed(out, EXITED, |out| put_exit(out, exit)),
        Reply::Event(Event::SpawnFailed { kind, message }) => framed(out, SPAWN_FAILED, |out| {
            out.put_u8(spawn_error_code(*kind));
            put_bytes(out, message.as_bytes());
        }),
    }
}

/// Parses the body of a frame for the shim.
pub(crate) fn request(kind: u8, mut body: &[u8]) -> Result<Request, Malformed> {
    let body = &mut body;
    let run = body.try_get_u64_le()?;
    match kind {
        RUN => {
            let (files, keep) = (body.try_get_u8()?, body.try_get_u8()? != 0);
            Ok(Request::Run { run, files, keep, limits: get_limits(body)?, command: get_command(body)? })
        }
        RENEW => Ok(Request::Renew { run, deadline: Deadline::from_millis(body.try_get_u64_le()?) }),
        KILL => Ok(Request::Kill { run, grace: get_duration(body)? }),
        FORGET => Ok(Request::Forget { number: run, grace: get_duration(body)? }),
        MEASURE => Ok(Request::Measure { run }),
        _ => Err(Malformed("its kind is unknown")),
    }
}

/// Parses the body of a frame for the worker.
pub(crate) fn reply(kind: u8, mut body: Bytes) -> Result<Reply, Malformed> {
    let body = &mut body;
    Ok(Reply::Event(match kind {
        READY => {
            let subreaper = body.try_get_u8()? != 0;
            return Ok(Reply::Ready(if subreaper { Mode::Subreaper } else { Mode::PidNamespace }));
        }
        SPENT => return Ok(Reply::Spent),
        KEPT => return Ok(Reply::Kept(body.try_get_u8()? != 0)),
        FORGOTTEN => return Ok(Reply::Forgotten(body.try_get_u64_le()?)),
        MEASURED => {
            let run = body.try_get_u64_le()?;
            let measured = Measured { cpu: get_duration(body)?, memory_bytes: body.try_get_u64_le()? };
            return Ok(Reply::Measured(run, measured));
        }
        STARTED => Event::Started { pid: body.try_get_u32_le()?, at: Moment(get_duration(body)?) },
        STDOUT => Event::Output { stream: Stream::Stdout, data: std::mem::take(body) },
        STDERR => Event::Output { stream: Stream::Stderr, data: std::mem::take(body) },
        EXITED => Event::Exited(get_exit(body)?),
        SPAWN_FAILED => {
            Event::SpawnFailed { kind: spawn_error_kind(body.try_get_u8()?), message: get_string(body)? }
        }
        _ => return Err(Malformed("its kind is unknown")),
    }))
}

fn put_exit(out: &mut Vec<u8>, exit: &Exit) {
    out.put_u8(match exit.cause {
        Cause::Ended => 0,
        Cause::Killed => 1,
        Cause::Deadline => 2,
        Cause::OverLimit(_) => 3,
        Cause::OutOfMemory => 4,
        Cause::OutputTooLarge(Stream::Stdout, _) => 5,
        Cause::OutputTooLarge(Stream::Stderr, _) => 6,
    });
    match exit.cause {
        Cause::OverLimit(over) => put_over(out, over),
        Cause::OutputTooLarge(_, bytes) => out.put_u64_le(bytes),
        Cause::Ended | Cause::Killed | Cause::Deadline | Cause::OutOfMemory => {}
    }
    for number in [exit.exit_code, exit.signal] {
        out.put_u8(u8::from(number.is_some()));
        out.put_i32_le(number.unwrap_or_default());
    }
    put_duration(out, exit.wall);
    put_duration(out, exit.cpu);
    out.put_u64_le(exit.peak_memory_bytes);
}

fn get_exit(body: &mut impl Buf) -> Result<Exit, Malformed> {
    let cause = match body.try_get_u8()? {
        0 => Cause::Ended,
        1 => Cause::Killed,
        2 => Cause::Deadline,
        3 => Cause::OverLimit(get_over(body)?),
        4 => Cause::OutOfMemory,
        5 => Cause::OutputTooLarge(Stream::Stdout, body.try_get_u64_le()?),
        6 => Cause::OutputTooLarge(Stream::Stderr, body.try_get_u64_le()?),
        _ => return Err(Malformed("its cause is unknown")),
    };
    let mut number = || -> Result<_, Malformed> {
        let there = body.try_get_u8()? != 0;
        let number = body.try_get_i32_le()?;
        Ok(there.then_some(number))
    };
    Ok(Exit {
        exit_code: number()?,
        signal: number()?,
        cause,
        wall: get_duration(body)?,
        cpu: get_duration(body)?,
        peak_memory_bytes: body.try_get_u64_le()?,
    })
}

fn get_command(body: &mut impl Buf) -> Result<Command, Malformed> {
    let deadline = body.try_get_u64_le()?;
    let cwd = PathBuf::from(OsString::from_vec(get_bytes(body)?));
    let argv = (0..body.try_get_u32_le()?).map(|_| get_string(body)).collect::<Result<_, _>>()?;
    let env = (0..body.try_get_u32_le()?)
        .map(|_| Ok((get_string(body)?, get_string(body)?)))
        .collect::<Result<_, Malformed>>()?;
    let deadline = (deadline != u64::MAX).then(|| Deadline::from_millis(deadline));
    Ok(Command { argv, env, cwd, deadline })
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.put_u32_le(u32::try_from(count).unwrap_or(u32::MAX));
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.put_slice(bytes);
}

fn put_duration(out: &mut Vec<u8>, duration: Duration) {
    out.put_u64_le(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
}

fn get_duration(body: &mut impl Buf) -> Result<Duration, Malformed> {
    Ok(Duration::from_nanos(body.try_get_u64_le()?))
}

fn get_bytes(body: &mut impl Buf) -> Result<Vec<u8>, Malformed> {
    let length = usize::try_from(body.try_get_u32_le()?).unwrap_or(usize::MAX);
    if length > body.remaining() {
        return Err(Malformed("it ends too early"));
    }
    let mut bytes = vec![0; length];
    body.copy_to_slice(&mut bytes);
    Ok(bytes)
}

fn get_string(body: &mut impl Buf) -> Result<String, Malformed> {
    String::from_utf8(get_bytes(body)?).map_err(|_| Malformed("its text is not UTF-8"))
}

const SPAWN_ERROR_KINDS: [SpawnErrorKind; 7] = [
    SpawnErrorKind::Other,
    SpawnErrorKind::NotFound,
    SpawnErrorKind::PermissionDenied,
    SpawnErrorKind::WorkingDirectory,
    SpawnErrorKind::TooLarge,
    SpawnErrorKind::InvalidInput,
    SpawnErrorKind::Resources,
];

fn spawn_error_code(kind: SpawnErrorKind) -> u8 {
    let place = SPAWN_ERROR_KINDS.iter().position(|known| *known == kind);
    place.and_then(|place| u8::try_from(place).ok()).present("a kind of spawn error has no code")
}

fn spawn_error_kind(code: u8) -> SpawnErrorKind {
    SPAWN_ERROR_KINDS.get(usize::from(code)).copied().unwrap_or(SpawnErrorKind::Other)
}

#[cfg(test)]
mod tests;
