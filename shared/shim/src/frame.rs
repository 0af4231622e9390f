//! The frames on the socket between worker and shim: a kind byte, the body's length as little-endian u32, the body,
//! which is a message as MessagePack, or the output of a command as it is. Frames have no version, because both ends
//! are the same executable.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use invariant::{Present as _, impossible};
use serde::{Deserialize, Serialize};

use crate::model::{Command, Deadline, Event, Limits, Measured, Mode, Stream};

/// Bytes of the header before each body.
pub(crate) const HEADER: usize = 5;
/// Maximum output bytes in one frame.
pub(crate) const MAX_CHUNK: usize = 64 * 1024;
/// Maximum bytes of a body: larger commands exceed the kernel's limit too.
pub(crate) const MAX_BODY: usize = 8 * 1024 * 1024;

const MESSAGE: u8 = 1;
const STDOUT: u8 = 2;
const STDERR: u8 = 3;

/// Bytes that are not a valid frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("invalid frame: it is longer than any frame may be")]
    TooLong,
    #[error("invalid frame: its kind is unknown")]
    UnknownKind,
    #[error("invalid frame: {0}")]
    Message(rmp_serde::decode::Error),
}

/// A message from worker to shim. `run` numbers the commands of one shim, so that a late message about one command
/// cannot affect the next.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request<'a> {
    /// `files` descriptors came with it: standard output and error, then standard input if `stdin`, then a wrapper's status
    /// and arguments. With `keep`, processes that outlive the command's own process stay alive.
    Run {
        run: u64,
        files: u8,
        stdin: bool,
        keep: bool,
        limits: Limits,
        command: Cow<'a, Command>,
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
    /// Stops the survivors, or lets them go on. Also numbered.
    Hold {
        number: u64,
        hold: bool,
    },
}

/// A message from shim to worker.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The request of this number is carried out.
    Held(u64),
    Event(Event),
}

/// The kind and body length of the frame at the start of `bytes`, if its header is complete.
pub(crate) fn header(bytes: &[u8]) -> Result<Option<(u8, usize)>, Malformed> {
    let Some((&[kind, length @ ..], _)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > MAX_BODY {
        return Err(Malformed::TooLong);
    }
    Ok(Some((kind, length)))
}

/// Appends the header of an output frame, whose length is set by [`close`].
pub(crate) fn open(out: &mut Vec<u8>, stream: Stream) -> usize {
    let kind = match stream {
        Stream::Stdout => STDOUT,
        Stream::Stderr => STDERR,
    };
    open_kind(out, kind)
}

/// Sets the length of the frame that starts at `at` and ends with `out`.
pub(crate) fn close(out: &mut [u8], at: usize) {
    // The receiver refuses a frame that is too long.
    let length = u32::try_from(out.len().saturating_sub(at + HEADER)).unwrap_or(u32::MAX);
    match out.get_mut(at + 1..at + HEADER) {
        Some(field) => field.copy_from_slice(&length.to_le_bytes()),
        None => impossible!("a frame has no header"),
    }
}

/// Appends the frame of a request.
pub(crate) fn put_request(out: &mut Vec<u8>, request: &Request<'_>) {
    put_message(out, request);
}

/// Appends a [`Reply`]. Output is usually written through [`open`] and [`close`], but is accepted here too.
pub(crate) fn put_reply(out: &mut Vec<u8>, reply: &Reply) {
    if let Reply::Event(Event::Output { stream, data }) = reply {
        let at = open(out, *stream);
        out.extend_from_slice(data);
        close(out, at);
    } else {
        put_message(out, reply);
    }
}

/// Parses the body of a frame for the shim.
pub(crate) fn request(kind: u8, body: &[u8]) -> Result<Request<'static>, Malformed> {
    match kind {
        MESSAGE => rmp_serde::from_slice(body).map_err(Malformed::Message),
        _ => Err(Malformed::UnknownKind),
    }
}

/// Parses the body of a frame for the worker.
pub(crate) fn reply(kind: u8, body: Bytes) -> Result<Reply, Malformed> {
    let stream = match kind {
        MESSAGE => return rmp_serde::from_slice(&body).map_err(Malformed::Message),
        STDOUT => Stream::Stdout,
        STDERR => Stream::Stderr,
        _ => return Err(Malformed::UnknownKind),
    };
    Ok(Reply::Event(Event::Output { stream, data: body }))
}

fn open_kind(out: &mut Vec<u8>, kind: u8) -> usize {
    let at = out.len();
    out.extend_from_slice(&[kind, 0, 0, 0, 0]);
    at
}

fn put_message(out: &mut Vec<u8>, message: &impl Serialize) {
    let at = open_kind(out, MESSAGE);
    // Only a write can fail, and a vector accepts every byte.
    rmp_serde::encode::write(out, message).present("a message between worker and shim as MessagePack");
    close(out, at);
}

#[cfg(test)]
mod tests;
