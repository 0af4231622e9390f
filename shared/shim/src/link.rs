//! The worker's end of the socket.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use nix::sys::socket::{ControlMessage, MsgFlags, Shutdown, sendmsg, shutdown};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::client::ShimError;

/// A socket to a shim, shared by who reads from it and all who send on it.
#[derive(Debug)]
pub(crate) struct Link {
    stream: UnixStream,
    unsent: Mutex<Unsent>,
}

/// What the socket has not taken yet. Kept here and not in a future, so that a dropped future cannot tear a
/// frame: whoever sends next finishes it.
#[derive(Debug, Default)]
struct Unsent {
    bytes: Vec<u8>,
    /// They go with the next bytes, hence before the end of the frame that they belong to.
    files: Vec<OwnedFd>,
}

impl Link {
    /// The worker's end.
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, unsent: Mutex::default() }
    }

    /// To read from.
    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends a frame.
    pub(crate) async fn send(&self, frame: impl FnOnce(&mut Vec<u8>)) -> Result<(), ShimError> {
        let done = self.push(frame)?;
        self.finish(done).await
    }

    /// Sends a frame and the files that it speaks of.
    pub(crate) async fn send_with(&self, frame: &[u8], files: Vec<OwnedFd>) -> Result<(), ShimError> {
        let done = self.put(|unsent| {
            unsent.bytes.extend_from_slice(frame);
            unsent.files.extend(files);
        })?;
        self.finish(done).await
    }

    /// Appends a frame and writes what the socket takes; tells whether that was everything.
    pub(crate) fn push(&self, frame: impl FnOnce(&mut Vec<u8>)) -> io::Result<bool> {
        self.put(|unsent| frame(&mut unsent.bytes))
    }

    /// Says to the shim, and to all who still use this end, that it is over.
    pub(crate) fn close(&self) {
        // It fails only where the other end is gone already.
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
