//! Downloading the output files of builds.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use command_line::failure::{FAILED, Failure};
use disk::Confined;
use model::OutputFile;
use remote::{Placed, Remote, RemoteError};

use crate::{
    download::download,
    progress::{Progress, When},
    remote::print,
};

/// Writes `file` to `destination`: a path in an existing folder, a folder, or `-` for stdout. A path that ends with a
/// slash is a folder, and is created.
pub(crate) async fn fetch(store: &Remote, file: &OutputFile, destination: &str) -> Result<(), Failure> {
    if destination == "-" {
        if !store.missing(&[file.blob()]).await?.is_empty() {
            return Err(no_longer_kept(file));
        }
        return print(store, &file.blob()).await;
    }
    if destination.ends_with('/') {
        make_folder(Path::new(destination))?;
    }
    fetch_to(store, &[(file, place(&file.path, destination))], None).await
}

/// Writes `files` below the folder `destination` under their paths, and creates the folders.
pub(crate) async fn fetch_all(
    store: &Remote,
    files: &[&OutputFile],
    destination: &str,
) -> Result<(), Failure> {
    let mut placed = Vec::with_capacity(files.len());
    for file in files {
        let inside = Path::new(&file.path).components().all(|part| matches!(part, Component::Normal(_)));
        if !inside {
            return Err(Failure::plain(
                FAILED,
                format!("invalid output path {:?}: outside the folder", file.path),
            ));
        }
        placed.push((*file, PathBuf::from(&file.path)));
    }
    let destination = Path::new(destination);
    make_folder(destination)?;
    // The folder itself may be a link: the user named it.
    let opened = destination.canonicalize().and_then(|folder| Confined::at(&folder));
    let opened = opened
        .map_err(|error| Failure::new(FAILED, format!("cannot open {}", destination.display()), &error))?;
    fetch_to(store, &placed, Some(&opened)).await
}

async fn fetch_to(
    store: &Remote,
    files: &[(&OutputFile, PathBuf)],
    below: Option<&Confined>,
) -> Result<(), Failure> {
    let placed = files.iter().map(|(file, path)| Placed {
        digest: file.blob(),
        below: below.cloned(),
        path: path.clone(),
        executable: file.executable,
    });
    let placed: Vec<Placed> = placed.collect();
    download(store, &placed, &Progress::new(When::Auto), |error| failure(error, files)).await
}

fn failure(error: RemoteError, files: &[(&OutputFile, PathBuf)]) -> Failure {
    if let RemoteError::Missing { digest } = &error
        && let Some((file, _)) = files.iter().find(|(file, _)| file.blob() == *digest)
    {
        return no_longer_kept(file);
    }
    error.into()
}

fn no_longer_kept(file: &OutputFile) -> Failure {
    let (path, blob) = (&file.path, file.blob());
    Failure::plain(
        FAILED,
        format!(
            "the store has no blob {blob} of {path:?}: it may have been deleted objects_days after the build ended"
        ),
    )
}

/// The path of a file: `destination`, or a file with the same name in it if it is a folder or ends with a slash.
fn place(kept: &str, destination: &str) -> PathBuf {
    let to = Path::new(destination);
    match Path::new(kept).file_name() {
        Some(name) if destination.ends_with('/') || to.is_dir() => to.join(name),
        Some(_) | None => to.to_owned(),
    }
}

fn make_folder(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| {
        Failure::new(FAILED, format!("cannot create the folder {}", folder.display()), &error)
    })
}

#[cfg(test)]
mod tests {
    use super::{Path, place};

    #[test]
    fn a_folder_takes_the_file_under_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().to_str().unwrap();
        assert_eq!(place("out/a.txt", name), folder.path().join("a.txt"));
        assert_eq!(place("out/a.txt", "b.txt"), Path::new("b.txt"));
        assert_eq!(place("out/a.txt", "new/"), Path::new("new/a.txt"));
    }
}
