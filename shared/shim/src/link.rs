//! The worker's end of the socket.

use std::fs::File;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::error::ShimError;

/// A socket to a shim, shared by its reader and all senders.
#[derive(Debug)]
pub(crate) struct Link {
    /// Registered for reading only: a socket that is registered for writing too reports each time that the shim
    /// receives a frame, which would wake the thread that waits for the end of the command.
    stream: AsyncFd<UnixStream>,
    unsent: Mutex<Unsent>,
}

/// Bytes that the socket has not accepted yet. They are kept here and not in a future, so that a dropped future
/// cannot tear a frame: the next sender finishes it.
#[derive(Debug, Default)]
struct Unsent {
    bytes: Vec<u8>,
    /// Sent with the next bytes, and so before the end of their frame.
    files: Vec<Arc<File>>,
}

impl Link {
    /// Uses a socket, which becomes non-blocking.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let stream = register(stream, Interest::READABLE)?;
        Ok(Self { stream, unsent: Mutex::default() })
    }

    pub(crate) fn stream(&self) -> &AsyncFd<UnixStream> {
        &self.stream
    }

    /// Sends a frame to the shim.
    pub(crate) async fn send(&self, frame: impl FnOnce(&mut Vec<u8>)) -> Result<(), ShimError> {
        let done = self.push(frame)?;
        self.finish(done).await
    }

    /// Sends a frame and the files that belong to it.
    pub(crate) async fn send_with(&self, frame: &[u8], files: Vec<Arc<File>>) -> Result<(), ShimError> {
        let done = self.put(|unsent| {
            unsent.bytes.extend_from_slice(frame);
            unsent.files.extend(files);
        })?;
        self.finish(done).await
    }

    /// Appends a frame and writes as much as the socket accepts; returns whether that was everything.
    pub(crate) fn push(&self, frame: impl FnOnce(&mut Vec<u8>)) -> io::Result<bool> {
        self.put(|unsent| frame(&mut unsent.bytes))
    }

    /// Closes the connection for the shim and for all users of this end.
    pub(crate) fn close(&self) {
        // It fails only if the other end is already closed.
        let _ = self.stream.get_ref().shutdown(Shutdown::Both);
    }

    /// Sends the rest once the socket accepts more, which only requests larger than its buffer need.
    async fn finish(&self, mut done: bool) -> Result<(), ShimError> {
        while !done {
            let stream = self.stream.get_ref().try_clone()?;
            register(stream, Interest::WRITABLE)?.writable().await?.retain_ready();
            done = self.put(|_| ())?;
        }
        Ok(())
    }

    fn put(&self, add: impl FnOnce(&mut Unsent)) -> io::Result<bool> {
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        add(&mut unsent);
        while !unsent.bytes.is_empty() {
            match self.write(&unsent) {
                Ok(count) => {
                    unsent.bytes.drain(..count);
                    unsent.files.clear();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn write(&self, unsent: &Unsent) -> io::Result<usize> {
        let files: Vec<_> = unsent.files.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&files)];
        let rights = if files.is_empty() { &[][..] } else { &rights };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let bytes = [IoSlice::new(&unsent.bytes)];
        Ok(sendmsg::<()>(self.stream.as_raw_fd(), &bytes, rights, flags, None)?)
    }
}

#[expect(
    deprecated,
    reason = "a socket keeps the same open descriptor, which is all that the newer function requires"
)]
fn register(stream: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    AsyncFd::with_interest(stream, interest)
}
