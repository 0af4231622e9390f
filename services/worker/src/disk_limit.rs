//! Ends builds whose files are larger than they may be.

use std::{path::PathBuf, sync::Arc, time::Duration};

use disk::Used;
use service::ServiceError;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{folder::SERVICES, shared::Shared, stop::Cause};

/// Minimum time between two measurements.
const INTERVAL: Duration = Duration::from_millis(200);
/// Bytes that a file or folder counts for its inode.
const INODE: u64 = 256;
/// Measuring uses at most one part in this many of a processor.
const SHARE: u32 = 20;

/// Measures the workspaces of builds that have a limit, until the worker ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    loop {
        let limited = shared.workspaces.disk_limits();
        if limited.is_empty() {
            shared.workspaces.limited.notified().await;
            continue;
        }
        let started = Instant::now();
        for (number, allowed) in limited {
            let folder = shared.folder.path().join(number.to_string());
            let used = measure(folder).await;
            if used > allowed {
                info!(workspace = number, used, allowed, "ending a build whose files are too large");
                shared.workspaces.stop(number, Cause::OverDisk { used, allowed });
                shared.workspaces.set_disk_limit(number, None);
            }
        }
        tokio::time::sleep((started.elapsed() * SHARE).max(INTERVAL)).await;
    }
}

/// Bytes of all files and folders of a workspace, each of which also counts for its inode. Those of services are left out:
/// their own sandboxes limit them.
pub(crate) async fn measure(folder: PathBuf) -> u64 {
    let all = move || {
        let used = Used::of_all_but(&folder, Some(&folder.join(SERVICES)));
        used.bytes.saturating_add(used.inodes.saturating_mul(INODE))
    };
    let measured = tokio::task::spawn_blocking(all).await;
    measured.inspect_err(|error| warn!(%error, "cannot measure a workspace")).unwrap_or_default()
}
