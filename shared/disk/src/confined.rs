//! Reads and writes below a folder without following links: others may replace a folder by a link after its path was checked.

use std::{
    fs::{self, File, Metadata, Permissions, ReadDir},
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2, readlinkat};

/// A folder that was opened. Clones share it.
#[derive(Debug, Clone)]
pub struct Confined(Arc<OwnedFd>);

impl Confined {
    /// Opens the folder at a resolved path; fails if a part of the path is a link by now.
    pub fn open(resolved: &Path) -> io::Result<Self> {
        let how = how(OFlag::O_PATH | OFlag::O_DIRECTORY);
        Ok(Self(Arc::new(openat2(AT_FDCWD, resolved, how.resolve(ResolveFlag::RESOLVE_NO_SYMLINKS))?)))
    }

    /// Opens the folder at `path`, whose parts before the last are not checked; fails if the last is a link.
    pub fn at(path: &Path) -> io::Result<Self> {
        let how = how(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW);
        Ok(Self(Arc::new(openat2(AT_FDCWD, path, how)?)))
    }

    /// Opens a folder below; the empty path is this folder.
    pub fn folder(&self, path: &Path) -> io::Result<Self> {
        if path.as_os_str().is_empty() {
            return Ok(self.clone());
        }
        Ok(Self(Arc::new(self.entry(path, OFlag::O_PATH | OFlag::O_DIRECTORY)?)))
    }

    /// Opens a folder below, and makes it and those above it if they are missing.
    pub fn make_folder(&self, path: &Path) -> io::Result<Self> {
        match self.folder(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        let mut folder = self.clone();
        for part in path.components() {
            let Component::Normal(name) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
            match fs::create_dir(folder.place(name).path()) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => folder = folder.folder(Path::new(name))?,
            }
        }
        Ok(folder)
    }

    /// The entry at a path below, in an existing folder.
    pub fn place_at(&self, path: &Path) -> io::Result<Place> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.folder(path.parent().unwrap_or(Path::new("")))?.place(name))
    }

    /// The entries of this folder. Their paths lead through its descriptor.
    pub fn entries(&self) -> io::Result<ReadDir> {
        fs::read_dir(seen(self))
    }

    /// The entry with this name, a path of one part.
    pub fn place(&self, name: impl AsRef<Path>) -> Place {
        Place { path: seen(self).join(name), folder: self.clone() }
    }

    /// Opens a regular file for reading.
    pub fn file(&self, path: &Path) -> io::Result<File> {
        // A pipe in place of the file must not block.
        let file = File::from(self.entry(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?);
        regular(file, path)
    }

    /// The metadata of an entry; that of a link itself.
    pub fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        File::from(self.entry(path, OFlag::O_PATH)?).metadata()
    }

    /// The target of a link.
    pub fn link_target(&self, path: &Path) -> io::Result<PathBuf> {
        let link = self.entry(path, OFlag::O_PATH)?;
        Ok(PathBuf::from(readlinkat(&link, "")?))
    }

    fn entry(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
        Ok(openat2(&*self.0, path, how(flags | OFlag::O_NOFOLLOW).resolve(resolve))?)
    }
}

impl AsFd for Confined {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An entry of a folder that is kept open: its path leads into this folder, whatever takes the place of a folder above. It may
/// not exist, and may become a link.
#[derive(Debug, Clone)]
pub struct Place {
    path: PathBuf,
    folder: Confined,
}

impl Place {
    /// The path, for calls that do not follow a link in its last part.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a regular file for reading.
    pub fn file(&self) -> io::Result<File> {
        self.folder.file(self.name())
    }

    /// Creates a file; an existing file or link is replaced.
    pub fn create(&self) -> io::Result<File> {
        self.clear()?;
        File::options().write(true).create_new(true).open(&self.path)
    }

    /// Creates a link; an existing file or link is replaced.
    pub fn link_to(&self, target: &Path) -> io::Result<()> {
        self.clear()?;
        std::os::unix::fs::symlink(target, &self.path)
    }

    fn clear(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Changes the mode of a file or folder; fails for a link.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        let entry = File::from(self.folder.entry(self.name(), OFlag::O_PATH)?);
        if entry.metadata()?.is_symlink() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        fs::set_permissions(seen(&entry), Permissions::from_mode(mode))
    }

    fn name(&self) -> &Path {
        self.path.file_name().map_or(&self.path, Path::new)
    }
}

/// Opens the regular file at a resolved path; fails if a part of the path is a link by now.
pub fn open_file(resolved: &Path) -> io::Result<File> {
    let how = how(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW);
    let file = openat2(AT_FDCWD, resolved, how.resolve(ResolveFlag::RESOLVE_NO_SYMLINKS))?;
    regular(File::from(file), resolved)
}

/// The path by which this process sees what a descriptor refers to.
pub(crate) fn seen(entry: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", entry.as_fd().as_raw_fd()))
}

fn how(flags: OFlag) -> OpenHow {
    OpenHow::new().flags(flags | OFlag::O_CLOEXEC)
}

fn regular(file: File, path: &Path) -> io::Result<File> {
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not a regular file", path.display())))
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
    fn an_entry_stays_in_its_folder() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        for folder in ["work/sub", "secret"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("secret/file"), "secret").unwrap();
        let entry = Confined::at(&root.join("work")).unwrap().folder("sub".as_ref()).unwrap().place("file");
        fs::rename(root.join("work/sub"), root.join("work/moved")).unwrap();
        symlink(root.join("secret"), root.join("work/sub")).unwrap();
        fs::write(entry.path(), "new").unwrap();
        assert_eq!(io::read_to_string(entry.file().unwrap()).unwrap(), "new");
        entry.set_mode(0o600).unwrap();
        fs::remove_file(entry.path()).unwrap();
        assert!(fs::read_dir(root.join("work/moved")).unwrap().next().is_none());
        symlink(root.join("secret/file"), entry.path()).unwrap();
        assert!(entry.file().is_err() && entry.set_mode(0o777).is_err());
        assert_eq!(fs::read_to_string(root.join("secret/file")).unwrap(), "secret");
        assert!(Confined::at(&root.join("work/sub")).is_err());
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
