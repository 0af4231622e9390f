//! Moves the blobs of the store in which earlier versions kept outputs, logs, jobs and models into the farm's store.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use cas::Cas;
use model::{DigestFunction, FarmRecord};
use service::Context;
use telemetry::error_chain;
use tracing::{info, warn};

/// Maximum number of files that are moved at once.
const BATCH: usize = 1000;
/// How long the change of the farm's record is retried.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// Moves the blobs, if that store is a folder of this machine. A failure is logged; the next start tries again.
pub(crate) async fn move_blobs(context: &Context, cas: &Cas) {
    let url = match context.bus.earlier_store().await {
        Ok(url) => url,
        Err(error) => {
            warn!(error = error_chain(&error), "cannot read where an earlier version kept its outputs");
            return;
        }
    };
    let Some(folder) = url.as_deref().and_then(|url| url.strip_prefix("file://")) else { return };
    let blobs = Path::new(folder).join("sha256");
    match move_all(cas, &blobs).await {
        Ok(0) if !Path::new(folder).exists() => {
            warn!(folder, "the store of an earlier version is not on this machine: its blobs were not moved");
            return;
        }
        Ok(moved) => info!(moved, folder, "moved the outputs and logs of an earlier version into the store"),
        Err(error) => {
            warn!(error = error_chain(error.as_ref()), folder, "cannot move the blobs of an earlier version");
            return;
        }
    }
    if let Err(error) = forget(context).await {
        warn!(
            error = error_chain(&error),
            "cannot remove the store of an earlier version from the farm's record"
        );
    }
}

/// Moves all files below `blobs`, which is `sha256/<2 hex>/<hash>`. Returns their number.
async fn move_all(cas: &Cas, blobs: &Path) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
    let mut moved = 0;
    for shard in entries(blobs)? {
        for part in entries(&shard)?.chunks(BATCH) {
            let stored = cas.put_files(DigestFunction::Sha256, part.to_vec(), true).await;
            for (path, stored) in part.iter().zip(stored) {
                stored?;
                // It is still there if it could not be moved, only copied.
                match fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                    Ok(()) | Err(_) => moved += 1,
                }
            }
        }
    }
    Ok(moved)
}

/// The paths in a folder; none if it does not exist.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(found) => found.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Removes that store from the farm's record.
async fn forget(context: &Context) -> Result<(), bus::BusError> {
    loop {
        let (at, record) = context.bus.farm_record().await?;
        let Some(record) = record.filter(|record| record.store.is_some()) else { return Ok(()) };
        let record = FarmRecord { store: None, ..record };
        if context.bus.write_farm_record(&record, at, PATIENCE).await? {
            return Ok(());
        }
    }
}
