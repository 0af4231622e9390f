//! The files that receive a command's output, and how to follow them.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use shim::User;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

/// Maximum bytes that a tail returns at once.
const CHUNK: usize = 64 * 1024;
/// Time between two reads of a tail when the system provides no more watches.
const LOOK: Duration = Duration::from_millis(250);

/// One output of one command, which can be read while it is written.
#[derive(Debug, Clone)]
pub struct Log {
    path: PathBuf,
    file: Arc<File>,
    /// Becomes true, or closes, when the output is complete.
    over: watch::Receiver<bool>,
}

impl Log {
    /// Creates or empties the file. It belongs to `user`, because scripts reopen `/dev/stderr` by its path.
    pub(crate) fn create(path: &Path, user: Option<User>, over: watch::Receiver<bool>) -> io::Result<Self> {
        let mut options = File::options();
        let file = options.read(true).append(true).create(true).mode(0o600).open(path)?;
        let before = file.metadata()?;
        if before.len() > 0 {
            file.set_len(0)?;
        }
        if let Some(User { uid, gid }) = user
            && (before.uid(), before.gid()) != (uid, gid)
        {
            fchown(&file, Some(uid), Some(gid))?;
        }
        Ok(Self { path: path.to_owned(), file: Arc::new(file), over })
    }

    /// The descriptor for the command.
    pub(crate) fn descriptor(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Truncates the file, which has `length` bytes, to at most `bytes`; returns its new length.
    pub(crate) fn cut(&self, length: u64, bytes: u64) -> io::Result<u64> {
        if length > bytes {
            self.file.set_len(bytes)?;
        }
        Ok(length.min(bytes))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The current length in bytes.
    pub fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Whether the file is empty so far.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// At most `max` bytes from this offset; none if the file is shorter.
    pub fn read_at(&self, offset: u64, max: usize) -> io::Result<Bytes> {
        let there = usize::try_from(self.len()?.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = BytesMut::zeroed(there.min(max));
        let mut read = 0;
        while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset + read as u64) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(read);
        Ok(bytes.freeze())
    }

    /// Follows the output from this offset on.
    pub fn tail(&self, offset: u64) -> Tail {
        // The number of inotify instances is limited: without one, the file is read at intervals.
        Tail { watch: watch_file(&self.path).ok(), log: self.clone(), offset }
    }
}

#[expect(
    deprecated,
    reason = "an OwnedFd keeps the same open descriptor, which is all that the newer trait requires"
)]
fn watch_file(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    inotify.add_watch(path, AddWatchFlags::IN_MODIFY)?;
    AsyncFd::new(inotify.into())
}

/// Follows one output to its end.
#[derive(Debug)]
pub struct Tail {
    log: Log,
    offset: u64,
    /// Reports writes as they happen.
    watch: Option<AsyncFd<OwnedFd>>,
}

impl Tail {
    /// The next bytes as soon as they are written, at most 64 KiB; `None` when the command has ended and everything
    /// was returned. May be dropped and called again without losing bytes.
    pub async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            // Checked first, so that everything written before the end is read.
            let over = *self.log.over.borrow() || self.log.over.has_changed().is_err();
            let bytes = self.log.read_at(self.offset, CHUNK)?;
            if !bytes.is_empty() {
                self.offset += bytes.len() as u64;
                return Ok(Some(bytes));
            }
            if over {
                return Ok(None);
            }
            tokio::select! {
                _ = self.log.over.changed() => {}
                written = written(self.watch.as_ref()) => written?,
            }
        }
    }

    /// The offset of the next byte to return.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// Returns when bytes may have been written.
async fn written(watch: Option<&AsyncFd<OwnedFd>>) -> io::Result<()> {
    let Some(watch) = watch else {
        tokio::time::sleep(LOOK).await;
        return Ok(());
    };
    let mut ready = watch.readable().await?;
    // The events do not matter; reading clears them.
    let mut events = [0; 4096];
    let _ = ready.try_io(|inotify| Ok(nix::unistd::read(inotify, &mut events)?));
    Ok(())
}
