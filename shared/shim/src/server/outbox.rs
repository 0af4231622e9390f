//! Messages to the worker: frames wait here briefly so that one write carries many, and output grows into chunks. If
//! the worker reads too slowly it fills up, and the command's pipes are no longer read.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use invariant::Present as _;

use crate::frame::{self, HEADER, MAX_CHUNK, Reply};
use crate::model::Stream;

/// Maximum time that the first byte of a chunk waits for more.
const CHUNK_WAIT: Duration = Duration::from_millis(50);
/// Maximum time that a frame without output waits for more: longer than `/bin/true` runs.
const NEWS_WAIT: Duration = Duration::from_millis(2);
/// Unsent bytes at which reading from the command stops.
const FULL: usize = 256 * 1024;

/// Frames to be sent to the worker.
#[derive(Debug)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    /// The output frame at the end of `bytes`, if more may be added to it.
    open: Option<Open>,
    due: Option<Instant>,
    /// Whether the last write was incomplete.
    blocked: bool,
    scratch: Box<[u8]>,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    stream: Stream,
    at: usize,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        let scratch = vec![0; MAX_CHUNK].into_boxed_slice();
        Self { bytes: Vec::new(), sent: 0, open: None, due: None, blocked: false, scratch }
    }

    /// Adds a frame that must be sent now.
    pub(crate) fn put_urgent(&mut self, reply: &Reply) {
        self.close_chunk();
        frame::put_reply(&mut self.bytes, reply);
        self.due = Some(Instant::now());
    }

    /// Adds a frame that may wait to be sent with others.
    pub(crate) fn put(&mut self, reply: &Reply) {
        self.close_chunk();
        frame::put_reply(&mut self.bytes, reply);
        self.due_in(NEWS_WAIT);
    }

    /// Reads once from a pipe of the command; returns 0 at its end. A chunk of the other stream is closed first, so
    /// that output arrives in the order in which it was read.
    pub(crate) fn read_from(&mut self, stream: Stream, pipe: &mut impl Read) -> io::Result<usize> {
        let used = match self.open {
            Some(open) if open.stream == stream => self.bytes.len() - open.at - HEADER,
            _ => 0,
        };
        let room: &mut [u8] =
            self.scratch.get_mut(..MAX_CHUNK - used).present("a chunk is larger than its limit");
        let count = loop {
            match pipe.read(room) {
                Ok(count) => break count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        if count > 0 {
            if used == 0 {
                self.close_chunk();
                let at = frame::open(&mut self.bytes, stream);
                self.open = Some(Open { stream, at });
                self.due_in(CHUNK_WAIT);
            }
            let read = self.scratch.get(..count).present("a pipe returned more bytes than it was asked for");
            self.bytes.extend_from_slice(read);
            if used + count == MAX_CHUNK {
                self.close_chunk();
                self.due = Some(Instant::now());
            }
        }
        Ok(count)
    }

    /// When the next write is due; `None` while there is nothing to write or the socket is full.
    pub(crate) fn due(&self) -> Option<Instant> {
        if self.blocked { None } else { self.due }
    }

    /// Whether to wait until the socket accepts more.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether the command must wait for the worker.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() - self.sent >= FULL
    }

    /// Writes as much as the socket accepts.
    pub(crate) fn flush(&mut self, socket: &mut impl Write) -> io::Result<()> {
        self.close_chunk();
        while let Some(rest) = self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match socket.write(rest) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    self.forget_sent();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        self.due = None;
        self.blocked = false;
        Ok(())
    }

    fn forget_sent(&mut self) {
        if self.sent >= FULL {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    fn close_chunk(&mut self) {
        if let Some(open) = self.open.take() {
            frame::close(&mut self.bytes, open.at);
        }
    }

    fn due_in(&mut self, wait: Duration) {
        let at = Instant::now() + wait;
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Mode;

    /// Accepts this many bytes, then would block.
    struct Narrow(usize, Vec<u8>);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.0);
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.0 -= count;
            self.1.extend_from_slice(&bytes[..count]);
            Ok(count)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn one_stream_grows_a_chunk_and_the_other_ends_it() {
        let mut outbox = Outbox::new();
        for (stream, text) in [(Stream::Stdout, "a"), (Stream::Stdout, "b"), (Stream::Stderr, "c")] {
            assert_eq!(outbox.read_from(stream, &mut text.as_bytes()).unwrap(), 1);
        }
        assert_eq!(outbox.read_from(Stream::Stdout, &mut io::empty()).unwrap(), 0);
        let mut socket = Narrow(usize::MAX, Vec::new());
        outbox.flush(&mut socket).unwrap();
        assert_eq!(socket.1, b"\x02\x02\0\0\0ab\x03\x01\0\0\0c");
        assert!(outbox.due().is_none());
    }

    #[test]
    fn chunks_end_at_their_limit() {
        let mut outbox = Outbox::new();
        let mut text = io::repeat(b'x').take(MAX_CHUNK as u64 + 1);
        while outbox.read_from(Stream::Stdout, &mut text).unwrap() > 0 {}
        let mut socket = Narrow(usize::MAX, Vec::new());
        outbox.flush(&mut socket).unwrap();
        assert_eq!(socket.1.len(), MAX_CHUNK + 1 + 2 * HEADER);
        assert_eq!(&socket.1[..HEADER], b"\x02\0\0\x01\0");
    }

    #[test]
    fn a_socket_that_takes_nothing_fills_it_and_loses_nothing() {
        let (mut outbox, mut ready) = (Outbox::new(), Vec::new());
        frame::put_reply(&mut ready, &Reply::Ready(Mode::Subreaper));
        outbox.put_urgent(&Reply::Ready(Mode::Subreaper));
        let mut socket = Narrow(3, Vec::new());
        outbox.flush(&mut socket).unwrap();
        assert!(outbox.is_blocked() && outbox.due().is_none() && !outbox.is_full());
        let mut text = io::repeat(b'x');
        while !outbox.is_full() {
            outbox.read_from(Stream::Stdout, &mut text).unwrap();
        }
        socket.0 = usize::MAX;
        outbox.flush(&mut socket).unwrap();
        let (first, output) = socket.1.split_at(ready.len());
        assert_eq!((first, output[0]), (ready.as_slice(), 2));
        assert!(!outbox.is_blocked() && !outbox.is_full());
    }
}
