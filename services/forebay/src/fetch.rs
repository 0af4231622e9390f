//! Downloading the output files of builds.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
};

use model::OutputFile;
use remote::{Meter, Placed, Remote, RemoteError};

use crate::{
    failure::{FAILED, Failure},
    progress::{Progress, When},
    remote::print,
};

/// Writes `file` to `destination`: a file, a folder, or `-` for stdout.
pub(crate) async fn fetch(store: &Remote, file: &OutputFile, destination: &str) -> Result<(), Failure> {
    if destination == "-" {
        if !store.missing(&[file.blob()]).await?.is_empty() {
            return Err(no_longer_kept(file));
        }
        return print(store, &file.blob()).await;
    }
    download(store, &[(file, place(&file.path, destination))]).await
}

/// Writes `files` below the folder `destination` under their paths.
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
        placed.push((*file, Path::new(destination).join(&file.path)));
    }
    download(store, &placed).await
}

/// Downloads each file under a temporary name beside its path, and renames them when all are complete.
async fn download(store: &Remote, files: &[(&OutputFile, PathBuf)]) -> Result<(), Failure> {
    let mut partials = Vec::with_capacity(files.len());
    for (number, (file, path)) in files.iter().enumerate() {
        make_folder_of(path)?;
        let name = format!(".forebay-{}-{number}.partial", std::process::id());
        partials.push(Placed { digest: file.blob(), path: path.with_file_name(name), executable: false });
    }
    let (meter, progress) = (Meter::default(), Progress::new(When::Auto));
    let fetching = store.fetch_many(partials.clone(), &meter);
    let fetched = progress.transfer("downloading", &meter, fetching).await;
    let ended = match fetched {
        Ok(()) => files.iter().zip(&partials).try_for_each(|((file, path), placed)| {
            finish(file, &placed.path, path)
                .map_err(|error| Failure::new(FAILED, format!("cannot write {}", path.display()), &error))
        }),
        Err(error) => Err(failure(error, files)),
    };
    if ended.is_err() {
        for placed in &partials {
            // It may not exist; the error to report is the first one.
            let _ = fs::remove_file(&placed.path);
        }
    }
    ended
}

/// Moves a complete file to its path.
fn finish(file: &OutputFile, partial: &Path, path: &Path) -> io::Result<()> {
    if file.executable {
        allow_execution(partial)?;
    }
    fs::rename(partial, path)
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
