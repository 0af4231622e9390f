//! Reads below a folder without following links: others may replace a folder by a link after its path was checked.

use std::{
    fs::{File, Metadata},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2, readlinkat};

/// A folder that was opened. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Confined(Arc<OwnedFd>);

impl Confined {
    /// Opens the folder at a resolved path; fails if a part of the path is a link by now.
    pub(crate) fn open(resolved: &Path) -> io::Result<Self> {
        let how = how(OFlag::O_PATH | OFlag::O_DIRECTORY);
        Ok(Self(Arc::new(openat2(AT_FDCWD, resolved, how.resolve(ResolveFlag::RESOLVE_NO_SYMLINKS))?)))
    }

    /// Opens a regular file for reading.
    pub(crate) fn file(&self, path: &Path) -> io::Result<File> {
        // A pipe in place of the file must not block.
        let file = File::from(self.entry(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?);
        regular(file, path)
    }

    /// The metadata of an entry; that of a link itself.
    pub(crate) fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        File::from(self.entry(path, OFlag::O_PATH)?).metadata()
    }

    /// The target of a link.
    pub(crate) fn link_target(&self, path: &Path) -> io::Result<PathBuf> {
        let link = self.entry(path, OFlag::O_PATH)?;
        Ok(PathBuf::from(readlinkat(&link, "")?))
    }

    fn entry(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
        Ok(openat2(&*self.0, path, how(flags | OFlag::O_NOFOLLOW).resolve(resolve))?)
    }
}

/// Opens the regular file at a resolved path; fails if a part of the path is a link by now.
pub(crate) fn open_file(resolved: &Path) -> io::Result<File> {
    let how = how(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW);
    let file = openat2(AT_FDCWD, resolved, how.resolve(ResolveFlag::RESOLVE_NO_SYMLINKS))?;
    regular(File::from(file), resolved)
}

fn how(flags: OFlag) -> OpenHow {
    OpenHow::new().flags(flags | OFlag::O_CLOEXEC)
}

fn regular(file: File, path: &Path) -> io::Result<File> {
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::other(format!("{} is not a regular file", path.display())))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    #[test]
    fn c2_a_link_that_replaces_a_folder_or_file_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        for folder in ["source/sub", "secret"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("secret/file"), "secret").unwrap();
        fs::write(root.join("source/sub/file"), "x").unwrap();
        let source = Confined::open(&root.join("source")).unwrap();
        assert_eq!(io::read_to_string(source.file("sub/file".as_ref()).unwrap()).unwrap(), "x");
        fs::remove_dir_all(root.join("source/sub")).unwrap();
        symlink(root.join("secret"), root.join("source/sub")).unwrap();
        symlink(root.join("secret/file"), root.join("source/link")).unwrap();
        for path in ["sub/file", "link", "../secret/file", "/etc/passwd"] {
            assert!(source.file(path.as_ref()).is_err(), "{path}");
        }
        assert!(source.metadata("sub/file".as_ref()).is_err());
        assert!(source.metadata("link".as_ref()).unwrap().is_symlink());
        assert_eq!(source.link_target("link".as_ref()).unwrap(), root.join("secret/file"));
        fs::rename(root.join("source"), root.join("moved")).unwrap();
        symlink(root.join("secret"), root.join("source")).unwrap();
        assert!(Confined::open(&root.join("source")).is_err());
        assert!(
            open_file(&root.join("source/file")).is_err() && open_file(&root.join("secret/file")).is_ok()
        );
    }

    #[test]
    fn a_pipe_in_place_of_a_file_is_refused_at_once() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        mkfifo(&root.join("pipe"), Mode::S_IRWXU).unwrap();
        let error = Confined::open(&root).unwrap().file("pipe".as_ref()).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
