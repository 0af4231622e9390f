//! Opens the images of a machine, as its services share them.

use std::{fs, io, path::PathBuf};

use cas::Cas;
use download::{Downloader, Reach};
use model::FetchHost;
use sandbox::mounts_overlays;
use settings::ImageSettings;

use crate::{error::ImageError, images::Images, registry::Registries};

/// The folder of images in a data folder. All executors and workers of a machine that have the same data folder share it.
pub const FOLDER: &str = "images";

/// Opens the images in `folder`, which are read from registries that `fetch_hosts` leaves open and kept in `cas`.
///
/// Fails if the folder cannot be written, or if this program cannot be started again.
pub async fn open(
    folder: PathBuf,
    settings: ImageSettings,
    fetch_hosts: &[FetchHost],
    cas: Cas,
) -> Result<Images, ImageError> {
    let file = |what: &str, error: io::Error| ImageError::file(what, error);
    // Other processes may open the same folder now.
    fs::create_dir_all(&folder).map_err(|error| file("creating the folder of images", error))?;
    let lock = disk::wait_for_lock(&folder.join("opening")).await;
    let _lock = lock.map_err(|error| file("locking the folder of images", error))?;
    let program = std::env::current_exe().map_err(|error| file("finding the path of this program", error))?;
    let overlays = mounts_overlays(&program, &folder).await;
    let overlays = overlays.map_err(|error| file("trying to mount an image", io::Error::other(error)))?;
    let downloader = Downloader::new(Reach::within(fetch_hosts))
        .map_err(|error| file("preparing downloads of images", io::Error::other(error)))?;
    let bytes_max = settings.bytes_max;
    Images::open(folder, bytes_max, overlays, (cas, Registries::new(settings, downloader)))
}
