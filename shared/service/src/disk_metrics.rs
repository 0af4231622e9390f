//! Free space of the disks that a service uses, as metrics.

use std::path::PathBuf;

use disk::Space;
use telemetry::metrics::{Gauge, Label, Readings};
use tracing::debug;

/// Shows the space of the disk under `folder` at each scrape. `name` is the value of the label `disk`.
pub fn report_disk(name: &'static str, folder: PathBuf) {
    telemetry::on_scrape(move || {
        let read = folder.clone();
        async move {
            // A disk of another machine may block the thread for long.
            let space = tokio::task::spawn_blocking(move || Space::of(&read)).await.ok()?;
            let space = space.inspect_err(|error| debug!(%error, disk = name, "cannot read the free space"));
            let Space { bytes, bytes_left, .. } = space.ok()?;
            let mut readings = Readings::default();
            readings.add(Gauge::DiskBytes, &[(Label::Disk, name)], bytes);
            readings.add(Gauge::DiskFreeBytes, &[(Label::Disk, name)], bytes_left);
            Some(readings)
        }
    });
}
