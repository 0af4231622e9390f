//! The worker's end of the socket.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use nix::sys::socket::{ControlMessage, MsgFlags, Shutdown, sendmsg, shutdown};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::error::ShimError;

/// A socket to a shim, shared by its reader and all senders.
#[derive(Debug)]
pub(crate) struct Link {
    stream: UnixStream,
    unsent: Mutex<Unsent>,
}

/// Bytes that the socket has not accepted yet. They are kept here and not in a future, so that a dropped future
/// cannot tear a frame: the next sender finishes it.
#[derive(Debug, Default)]
struct Unsent {
    bytes: Vec<u8>,
    /// Sent with the next bytes, and so before the end of their frame.
    files: Vec<OwnedFd>,
}

impl Link {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, unsent: Mutex::default() }
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends a frame to the shim.
    pub(crate) async fn send(&self, frame: impl FnOnce(&mut Vec<u8>)) -> Result<(), ShimError> {
        let done = self.push(frame)?;
        self.finish(done).await
    }

    /// Sends a frame and the files that belong to it.
    pub(crate) async fn send_with(&self, frame: &[u8], files: Vec<OwnedFd>) -> Result<(), ShimError> {
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
        let _ = shutdown(self.stream.as_raw_fd(), Shutdown::Both);
    }

    async fn finish(&self, mut done: bool) -> Result<(), ShimError> {
        while !done {
            self.stream.writable().await?;
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
        if unsent.files.is_empty() {
            return self.stream.try_write(&unsent.bytes);
        }
        let files: Vec<_> = unsent.files.iter().map(AsRawFd::as_raw_fd).collect();
        self.stream.try_io(Interest::WRITABLE, || {
            let (bytes, files) = ([IoSlice::new(&unsent.bytes)], [ControlMessage::ScmRights(&files)]);
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            Ok(sendmsg::<()>(self.stream.as_raw_fd(), &bytes, &files, flags, None)?)
        })
    }
}
