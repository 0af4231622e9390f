//! What the worker offers to builds: what its settings and its machine say, and its secrets, which may change while it runs.

use std::{io, os::fd::OwnedFd, path::Path, sync::Arc, time::Duration};

use model::WorkerProperties;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use parking_lot::Mutex;
use service::ServiceError;
use tokio::io::unix::AsyncFd;
use tracing::{info, warn};

use crate::{
    secret_store::{FoundSecrets, SecretStore},
    shared::Shared,
};

/// Time between two looks at the secrets that no event of the file system caused.
const LOOK: Duration = Duration::from_secs(60);

/// The properties that the worker offers.
pub(crate) struct Offered {
    fixed: WorkerProperties,
    secrets: Option<SecretStore>,
    last: Mutex<Last>,
}

/// What the last look found.
#[derive(Default)]
struct Last {
    properties: WorkerProperties,
    unusable: Vec<String>,
}

impl Offered {
    /// Looks for the secrets the first time.
    ///
    /// # Errors
    ///
    /// Fails if the properties are too many, or if the secrets cannot be read.
    pub(crate) fn new(fixed: WorkerProperties, secrets: Option<SecretStore>) -> Result<Self, ServiceError> {
        let wrong = |error| ServiceError::failed("the setting worker_properties", error);
        fixed.check().map_err(wrong)?;
        let found = match &secrets {
            Some(store) => store.find().map_err(|error| {
                ServiceError::failed("looking for the secrets of builds (secrets_folder)", error)
            })?,
            None => FoundSecrets::default(),
        };
        let offered = Self { fixed, secrets, last: Mutex::default() };
        offered.note(found);
        Ok(offered)
    }

    /// The properties now.
    pub(crate) fn properties(&self) -> WorkerProperties {
        self.last.lock().properties.clone()
    }

    /// The folder with secrets, if builds may have some.
    pub(crate) fn secrets(&self) -> Option<&SecretStore> {
        self.secrets.as_ref()
    }

    /// Notes the secrets that were found; returns whether the properties changed.
    fn note(&self, FoundSecrets { offers, unusable }: FoundSecrets) -> bool {
        let mut last = self.last.lock();
        if last.unusable != unusable {
            for why in &unusable {
                warn!(why, "a file in the folder of secrets is not offered to builds");
            }
            last.unusable = unusable;
        }
        let count: usize = offers.values().map(Vec::len).sum();
        let mut properties = self.fixed.clone();
        properties.0.extend(offers);
        if let Err(error) = properties.check() {
            warn!(count, %error, "there are too many secrets: builds get none of them");
            properties = self.fixed.clone();
        }
        if last.properties == properties {
            return false;
        }
        if self.secrets.is_some() {
            info!(count, "offers secrets to builds");
        }
        last.properties = properties;
        true
    }
}

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
        // What is no folder is of no group.
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
