//! Follows the files with secrets, and announces what the worker has of them.

use std::{io, os::fd::OwnedFd, path::Path, sync::Arc, time::Duration};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use service::ServiceError;
use tokio::io::unix::AsyncFd;
use tracing::warn;

use crate::{secret_store::FoundSecrets, shared::Shared};

/// Time between two looks at the secrets that no event of the file system caused.
const LOOK: Duration = Duration::from_secs(60);

/// Looks for the secrets again, and announces them if they changed.
pub(crate) async fn refresh(shared: &Shared) {
    let Some(store) = shared.offered.secrets().cloned() else { return };
    let found = tokio::task::spawn_blocking(move || store.find()).await;
    let found = found.map_err(io::Error::other).and_then(|found| found).unwrap_or_else(|error| {
        warn!(%error, "cannot look for the secrets of builds (secrets_folder)");
        FoundSecrets::default()
    });
    if !shared.offered.note(found) {
        return;
    }
    shared.workspaces.announce.notify_one();
    if let Err(error) = shared.context.bus.buckets().announce_worker(&shared.offered.properties()).await {
        let error = telemetry::error_chain(&error);
        warn!(error, "cannot register the secrets: builds that ask for a new one are refused");
    }
}

/// Offers the secrets that are there, as files come and go.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let Some(store) = shared.offered.secrets().cloned() else { return std::future::pending().await };
    loop {
        // Before the look, so that a change in between is noticed.
        let watch = watch(store.folder()).inspect_err(|error| {
            warn!(%error, seconds = LOOK.as_secs(), "cannot watch the folder of secrets, and looks at it regularly");
        });
        refresh(&shared).await;
        tokio::select! {
            () = changed(watch.ok()) => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// Watches the folder and those of its groups.
#[expect(
    deprecated,
    reason = "an OwnedFd keeps the same open descriptor, which is all that the newer trait requires"
)]
fn watch(folder: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    let events = AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_ONLYDIR;
    inotify.add_watch(folder, events)?;
    for entry in std::fs::read_dir(folder)? {
        // Only folders are of groups.
        let _ = inotify.add_watch(&entry?.path(), events);
    }
    AsyncFd::new(inotify.into())
}

/// Returns when something changed; never without a watch.
async fn changed(watch: Option<AsyncFd<OwnedFd>>) {
    match watch {
        Some(watch) => drop(watch.readable().await),
        None => std::future::pending().await,
    }
}
