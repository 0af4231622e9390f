//! Work that is alone on the machine: a lock that all executors and workers of the machine share.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nix::fcntl::OFlag;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{Kind, Reading, Sensor, SensorInput};

/// Time between two attempts to lock.
const AGAIN: Duration = Duration::from_millis(20);

/// The lock of the machine. Work that may run beside other work holds it together, and work that must be alone by itself.
#[derive(Clone)]
pub struct MachineLock(Arc<Inner>);

struct Inner {
    /// Locked by all processes that run something together, or by the one whose work is alone.
    run: File,
    /// Locked by the process whose work wants to be alone, or is.
    wanted: File,
    /// A second handle on it, to see whether another process has it.
    seen: File,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// Number of works of this process that run together.
    together: usize,
    /// Whether work of this process wants to be alone, or is.
    alone: bool,
}

/// Work that runs beside other work, until it is dropped.
pub struct Together(Arc<Inner>);

/// Work that is alone on the machine, until it is dropped.
pub struct Alone(Arc<Inner>);

impl MachineLock {
    /// Opens the lock in the first of the folders that can be used, which all processes of the machine name alike. Every
    /// user of the machine may use it.
    ///
    /// # Errors
    ///
    /// Fails if the files cannot be made.
    pub fn open(folders: &[PathBuf]) -> io::Result<Self> {
        let mut last = io::Error::other("no folder is named");
        for folder in folders {
            match Self::open_in(folder) {
                Ok(lock) => return Ok(lock),
                Err(error) => last = io::Error::new(error.kind(), format!("{}: {error}", folder.display())),
            }
        }
        Err(last)
    }

    fn open_in(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let file = |name: &str| {
            let path = folder.join(name);
            let mut options = OpenOptions::new();
            // Others can make files in the folder if they made it first.
            options.custom_flags(OFlag::O_NOFOLLOW.bits());
            // Processes of other users lock the same files, which needs no right to write.
            match options.read(true).write(true).create(true).truncate(false).mode(0o644).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => File::open(&path),
                opened => opened,
            }
        };
        let (run, wanted, seen) = (file("run")?, file("alone")?, file("alone")?);
        Ok(Self(Arc::new(Inner { run, wanted, seen, held: Mutex::default() })))
    }

    /// Whether work of another process is alone on the machine, or wants to be.
    pub fn is_wanted(&self) -> bool {
        let _held = self.0.held.lock();
        self.0.is_wanted_elsewhere()
    }

    /// Waits until nothing on the machine is alone or wants to be, then runs beside other work.
    pub async fn together(&self) -> Together {
        while !self.0.try_together() {
            tokio::time::sleep(AGAIN).await;
        }
        Together(Arc::clone(&self.0))
    }

    /// Waits until nothing else runs on the machine; meanwhile nothing starts there. If that takes longer than `patience`,
    /// others may start for as long, and then it tries again.
    pub async fn alone(&self, patience: Duration) -> Alone {
        loop {
            let mut wish = Wish::new(&self.0);
            let until = Instant::now() + patience;
            while Instant::now() < until {
                if wish.try_alone() {
                    wish.is_granted = true;
                    return Alone(Arc::clone(&self.0));
                }
                tokio::time::sleep(AGAIN).await;
            }
            drop(wish);
            tokio::time::sleep(patience).await;
        }
    }

    /// A sensor that stops everything while work of another process is alone on the machine, or wants to be.
    pub fn sensor(&self) -> Box<dyn Sensor> {
        Box::new(AloneSensor(Arc::clone(&self.0)))
    }
}

impl Inner {
    fn try_together(&self) -> bool {
        let mut held = self.held.lock();
        if held.alone || self.is_wanted_elsewhere() {
            return false;
        }
        if held.together == 0 && is_locked_elsewhere(&self.run.try_lock_shared()) {
            return false;
        }
        held.together += 1;
        true
    }

    /// Whether work of another process wants to be alone, or is.
    fn is_wanted_elsewhere(&self) -> bool {
        let is_wanted = is_locked_elsewhere(&self.seen.try_lock_shared());
        if !is_wanted {
            // A file that cannot be unlocked was not locked.
            let _ = self.seen.unlock();
        }
        is_wanted
    }
}

/// Whether another process has the lock. On a file system without locks, no process has it: nothing waits there for ever.
fn is_locked_elsewhere(tried: &Result<(), TryLockError>) -> bool {
    matches!(tried, Err(TryLockError::WouldBlock))
}

/// The wish of this process to be alone, which ends with it unless it is granted.
struct Wish<'a> {
    inner: &'a Inner,
    is_announced: bool,
    is_granted: bool,
}

impl<'a> Wish<'a> {
    fn new(inner: &'a Inner) -> Self {
        Self { inner, is_announced: false, is_granted: false }
    }

    fn try_alone(&mut self) -> bool {
        let mut held = self.inner.held.lock();
        if !self.is_announced {
            // One after another: also those of this process.
            if held.alone || is_locked_elsewhere(&self.inner.wanted.try_lock()) {
                return false;
            }
            held.alone = true;
            self.is_announced = true;
        }
        held.together == 0 && !is_locked_elsewhere(&self.inner.run.try_lock())
    }
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        if self.is_announced && !self.is_granted {
            // A file that cannot be unlocked was not locked.
            let _ = self.inner.wanted.unlock();
            self.inner.held.lock().alone = false;
        }
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        let mut held = self.0.held.lock();
        held.together = held.together.saturating_sub(1);
        if held.together == 0 {
            // A file that cannot be unlocked was not locked.
            let _ = self.0.run.unlock();
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // Files that cannot be unlocked were not locked.
        let _ = self.0.run.unlock();
        let _ = self.0.wanted.unlock();
        self.0.held.lock().alone = false;
    }
}

struct AloneSensor(Arc<Inner>);

impl Sensor for AloneSensor {
    fn name(&self) -> &'static str {
        "alone"
    }

    fn kind(&self) -> Kind {
        Kind::Stop
    }

    fn read(&mut self, _: SensorInput) -> Reading {
        if !self.0.held.lock().alone && self.0.is_wanted_elsewhere() {
            return Reading::red("an action of another executor must be alone on this machine".to_owned());
        }
        Reading::green()
    }
}

#[cfg(test)]
mod tests {
    use policy::Signal;

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(20);

    /// Two processes of one machine.
    fn two() -> (tempfile::TempDir, MachineLock, MachineLock) {
        let folder = tempfile::tempdir().unwrap();
        let open = || MachineLock::open(&[folder.path().to_owned()]).unwrap();
        let (one, other) = (open(), open());
        (folder, one, other)
    }

    async fn is_stuck<T>(future: impl Future<Output = T>) -> bool {
        tokio::time::timeout(SHORT, future).await.is_err()
    }

    #[tokio::test]
    async fn what_is_alone_waits_for_others_and_keeps_them_out() {
        let (_folder, one, other) = two();
        let (first, second) = (one.together().await, other.together().await);
        let mut sensor = other.sensor();
        let mut signal = || sensor.read(SensorInput::default()).signal;
        assert_eq!(signal(), Signal::Green);
        let mut alone = Box::pin(one.alone(LONG));
        drop(first);
        assert!(is_stuck(&mut alone).await, "the other process runs something");
        assert!(is_stuck(other.together()).await, "nothing starts meanwhile");
        assert_eq!(signal(), Signal::Red);
        drop(second);
        let alone = alone.await;
        assert!(is_stuck(other.together()).await && is_stuck(one.together()).await);
        assert!(is_stuck(other.alone(LONG)).await);
        drop(alone);
        assert_eq!(signal(), Signal::Green);
        drop((one.together().await, other.together().await));
        drop(other.alone(LONG).await);
    }

    #[tokio::test]
    async fn others_may_start_when_its_patience_is_over() {
        let (_folder, one, other) = two();
        let long = other.together().await;
        let waiting = tokio::spawn(async move { drop(one.alone(SHORT).await) });
        tokio::time::sleep(SHORT / 2).await;
        // It gives way although the long work goes on.
        drop(tokio::time::timeout(LONG, other.together()).await.expect("others may start"));
        drop(long);
        waiting.await.unwrap();
    }

    #[tokio::test]
    async fn a_wish_that_is_dropped_keeps_nothing_out() {
        let (_folder, one, other) = two();
        let held = other.together().await;
        assert!(is_stuck(one.alone(LONG)).await);
        drop(other.together().await);
        drop(held);
        drop(one.together().await);
    }
}
