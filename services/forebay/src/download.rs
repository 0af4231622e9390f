//! Writes blobs of the store to paths of this machine.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use command_line::failure::{FAILED, Failure};
use model::BlobDigest;
use remote::{Meter, Placed, Remote, RemoteError};
use tokio::io::AsyncWriteExt as _;

use crate::progress::Progress;

/// How a blob is written to a path.
#[derive(Debug, PartialEq, Eq)]
enum Destination {
    /// To a temporary file in the same folder, which is then renamed to this path.
    File(PathBuf),
    /// Into this existing device or pipe.
    Stream(PathBuf),
}

impl Destination {
    /// What is at `path` decides. A symlink to a file is followed.
    fn of(path: &Path) -> Result<Self, Failure> {
        let what = || format!("cannot write {}", path.display());
        let failed = |error: io::Error| Failure::new(FAILED, what(), &error);
        let cannot = |why: &str| Failure::plain(FAILED, format!("{}: {why}", what()));
        let is_link = match fs::symlink_metadata(path) {
            Ok(found) => found.is_symlink(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                return match parent.filter(|parent| !parent.is_dir()) {
                    Some(parent) => Err(cannot(&format!("the folder {} does not exist", parent.display()))),
                    None => Ok(Self::File(path.to_owned())),
                };
            }
            Err(error) => return Err(failed(error)),
        };
        let kind = match fs::metadata(path) {
            Ok(found) => found.file_type(),
            Err(error) if is_link && error.kind() == io::ErrorKind::NotFound => {
                return Err(cannot("it is a symlink to a file that does not exist"));
            }
            Err(error) => return Err(failed(error)),
        };
        if kind.is_dir() {
            Err(cannot("it is a folder"))
        } else if kind.is_socket() {
            Err(cannot("it is a socket"))
        } else if !kind.is_file() {
            Ok(Self::Stream(path.to_owned()))
        } else if is_link {
            path.canonicalize().map(Self::File).map_err(failed)
        } else {
            Ok(Self::File(path.to_owned()))
        }
    }
}

/// Writes each blob to its path, in an existing folder. Files appear when all of them are complete; devices and pipes
/// get the content as it arrives. `failure` describes an error of the store.
pub(crate) async fn download(
    store: &Remote,
    wanted: &[Placed],
    progress: &Progress,
    failure: impl Fn(RemoteError) -> Failure,
) -> Result<(), Failure> {
    let (mut files, mut partials, mut streams) = (Vec::new(), Vec::new(), Vec::new());
    for (number, placed) in wanted.iter().enumerate() {
        let destination = match &placed.below {
            None => Destination::of(&placed.path)?,
            Some(_) => Destination::File(placed.path.clone()),
        };
        match destination {
            Destination::File(path) => {
                let name = format!(".forebay-{}-{number}.partial", std::process::id());
                let file = Placed { path, ..placed.clone() };
                partials.push(Placed {
                    path: file.path.with_file_name(name),
                    executable: false,
                    ..file.clone()
                });
                files.push(file);
            }
            Destination::Stream(path) => streams.push((placed.digest, path)),
        }
    }
    let meter = Meter::default();
    let fetching = store.fetch_many(partials.clone(), &meter);
    let ended = match progress.transfer("downloading", &meter, fetching).await {
        Ok(()) => files.iter().zip(&partials).try_for_each(|(file, partial)| {
            finish(file, partial).map_err(|error| {
                Failure::new(FAILED, format!("cannot write {}", file.path.display()), &error)
            })
        }),
        Err(error) => Err(failure(error)),
    };
    if ended.is_err() {
        for partial in &partials {
            // It may not exist; the error to report is the first one.
            let _ = partial.remove();
        }
    }
    ended?;
    for (digest, path) in &streams {
        write_into(store, digest, path).await.map_err(&failure)?;
    }
    Ok(())
}

/// Moves a complete file to its path.
fn finish(file: &Placed, partial: &Placed) -> io::Result<()> {
    let Some(below) = &file.below else {
        if file.executable {
            allow_execution(&partial.path)?;
        }
        return fs::rename(&partial.path, &file.path);
    };
    let (to, from) = (below.place_at(&file.path)?, below.place_at(&partial.path)?);
    if file.executable {
        allow_execution(from.path())?;
    }
    fs::rename(from.path(), to.path())
}

/// Writes a blob into a device or pipe. Content that does not have the digest is detected only at its end.
async fn write_into(store: &Remote, digest: &BlobDigest, path: &Path) -> Result<(), RemoteError> {
    let failed = |source: io::Error| RemoteError::File { path: path.display().to_string(), source };
    let mut out = tokio::fs::OpenOptions::new().write(true).open(path).await.map_err(failed)?;
    store.read_to(digest, async |piece| out.write_all(piece).await.map_err(failed)).await?;
    out.flush().await.map_err(failed)
}

fn allow_execution(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    // Everyone with read permission also gets execute permission.
    fs::set_permissions(path, fs::Permissions::from_mode(mode | (mode & 0o444) >> 2))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::{Destination, Path, allow_execution, fs};

    #[test]
    fn only_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        let refused = |path: &Path| Destination::of(path).unwrap_err().line().to_owned();
        fs::write(at("file"), "x").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("nowhere", at("lost")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        assert_eq!(Destination::of(&at("new")).unwrap(), Destination::File(at("new")));
        assert_eq!(Destination::of(&at("file")).unwrap(), Destination::File(at("file")));
        assert_eq!(Destination::of(&at("link")).unwrap(), Destination::File(at("file")));
        assert_eq!(Destination::of(&at("pipe")).unwrap(), Destination::Stream(at("pipe")));
        let device = Path::new("/dev/null");
        assert_eq!(Destination::of(device).unwrap(), Destination::Stream(device.to_owned()));
        assert!(refused(&at("lost")).contains("symlink to a file that does not exist"));
        assert!(refused(&at("socket")).contains("it is a socket"));
        assert!(refused(folder.path()).contains("it is a folder"));
        assert!(refused(&at("none/file")).contains("none does not exist"));
    }

    #[test]
    fn readers_may_execute() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o640)).unwrap();
        allow_execution(file.path()).unwrap();
        assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o750);
    }
}
