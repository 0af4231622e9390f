//! Downloading the output files of builds.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
};

use futures::StreamExt as _;
use model::{Digest, DigestFunction, OutputFile};
use settings::Settings;
use store::{Store, StoreError};

use crate::{
    failure::{FAILED, Failure},
    farm::Farm,
    stdout,
};

/// Writes `file` to `destination`: a file, a folder, or `-` for stdout.
pub(crate) async fn fetch(
    farm: &Farm,
    settings: &Settings,
    file: &OutputFile,
    destination: &str,
) -> Result<(), Failure> {
    let store = open(farm, settings).await?;
    if destination == "-" {
        return print(&store, &file.digest).await;
    }
    let path = place(&file.path, destination);
    make_folder_of(&path)?;
    store.fetch(&file.digest, &path).await?;
    if file.executable {
        allow_execution(&path).map_err(|error| {
            Failure::new(FAILED, format!("cannot make {} executable", path.display()), &error)
        })?;
    }
    Ok(())
}

/// Opens the farm's store: the one in the settings, else the one recorded on the bus.
pub(crate) async fn open(farm: &Farm, settings: &Settings) -> Result<Store, Failure> {
    if !settings.store_url.is_empty() {
        return Ok(Store::open(&settings.store_url)?);
    }
    let url = farm.call(async |client| Ok(client.bus().store_url().await?)).await?;
    match url {
        Some(url) => Ok(Store::open(&url)?),
        None => Err(Failure::plain(FAILED, "the farm has not recorded the URL of its store: set store_url")),
    }
}

/// Writes `files` below the folder `destination` under their paths.
pub(crate) async fn fetch_all(
    farm: &Farm,
    settings: &Settings,
    files: &[&OutputFile],
    destination: &str,
) -> Result<(), Failure> {
    for file in files {
        let inside = Path::new(&file.path).components().all(|part| matches!(part, Component::Normal(_)));
        if !inside {
            return Err(Failure::plain(
                FAILED,
                format!("invalid output path {:?}: outside the folder", file.path),
            ));
        }
        let path = Path::new(destination).join(&file.path);
        let path =
            path.to_str().ok_or_else(|| Failure::usage(format!("{destination:?} is not valid UTF-8")))?;
        fetch(farm, settings, file, path).await?;
    }
    Ok(())
}

/// The path of a file: `destination`, or a file with the same name in it if it is a folder or ends with a slash.
fn place(kept: &str, destination: &str) -> PathBuf {
    let to = Path::new(destination);
    match Path::new(kept).file_name() {
        Some(name) if destination.ends_with('/') || to.is_dir() => to.join(name),
        Some(_) | None => to.to_owned(),
    }
}

fn make_folder_of(path: &Path) -> Result<(), Failure> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    fs::create_dir_all(folder).map_err(|error| {
        Failure::new(FAILED, format!("cannot create the folder {}", folder.display()), &error)
    })
}

fn allow_execution(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    // Everyone with read permission also gets execute permission.
    fs::set_permissions(path, fs::Permissions::from_mode(mode | (mode & 0o444) >> 2))
}

/// Prints a blob to stdout. A corrupt blob is detected only at its end.
async fn print(store: &Store, digest: &Digest) -> Result<(), Failure> {
    let (_, mut parts) = store.stream(digest).await?;
    let mut hasher = DigestFunction::Sha256.hasher();
    while let Some(part) = parts.next().await {
        let part = part?;
        hasher.update(&part);
        stdout::bytes(&part)?;
    }
    let found = Digest::from_sha256(hasher.finish().hash);
    if found != *digest {
        return Err(StoreError::Damaged { wanted: digest.clone(), found }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::{Path, allow_execution, fs, place};

    #[test]
    fn a_folder_takes_the_file_under_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().to_str().unwrap();
        assert_eq!(place("out/a.txt", name), folder.path().join("a.txt"));
        assert_eq!(place("out/a.txt", "b.txt"), Path::new("b.txt"));
        assert_eq!(place("out/a.txt", "new/"), Path::new("new/a.txt"));
    }

    #[test]
    fn readers_may_execute() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o640)).unwrap();
        allow_execution(file.path()).unwrap();
        assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o750);
    }
}
