//! Helpers for the tests of several modules.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use model::{Build, BuildId, BuildRequest, Group, Millis, Priority, RequestLimits, TimeLimits};

/// The build that a request of `group` makes, with a new id.
pub(crate) fn build(group: &str, request: BuildRequest) -> Build {
    let times = TimeLimits { timeout_seconds: 60, queue_timeout_seconds: 60, lease_ttl_seconds: 5 };
    let limits = RequestLimits {
        request_bytes_max: 1 << 20,
        times,
        times_max: times,
        attempts: 1,
        attempts_max: 1,
        ..RequestLimits::default()
    };
    let group: Group = group.parse().unwrap();
    let request = BuildRequest { id: Some(BuildId::generate()), ..request };
    request.validate(&group, Some(Priority::Interactive), None, &limits, Millis(1)).unwrap().build
}

/// A thread that exchanges a folder with a link without a pause, as a hostile process does.
pub(crate) struct Exchanges {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exchanges {
    /// Exchanges `folder` with a link to `target` beside it.
    pub(crate) fn of(folder: PathBuf, target: &Path) -> Self {
        let link = folder.with_extension("link");
        std::os::unix::fs::symlink(target, &link).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // Fails while the folder is gone.
                let _ = renameat2(AT_FDCWD, &folder, AT_FDCWD, &link, RenameFlags::RENAME_EXCHANGE);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Exchanges {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
