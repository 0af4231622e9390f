//! The folder that a layer is unpacked into: every call is relative to an open folder, and follows no link.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use nix::unistd::geteuid;
use rustix::{
    fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags},
    io::Errno,
};

use crate::error::{ImageError, shown};

/// How a layer says what it hides of lower layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whiteouts {
    /// As the overlay file system of Linux reads it; requires root.
    Overlay,
    /// As files with the names that layers have for it, for copies.
    Files,
}

/// Owner, mode and time of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
    /// Time of change, in seconds since 1970.
    pub(crate) modified: u64,
}

impl Attributes {
    /// The same with only those bits of the mode.
    pub(crate) fn with_mode(self, bits: u32) -> Self {
        Self { mode: self.mode & bits, ..self }
    }
}

/// The attribute by which the overlay file system knows that nothing of a folder in lower layers is visible.
pub(crate) const OPAQUE_ATTRIBUTE: &str = "trusted.overlay.opaque";
/// The same as a file of a copy, and the prefix of files that hide a name.
pub(crate) const OPAQUE_FILE: &str = ".wh..wh..opq";
pub(crate) const WHITEOUT_PREFIX: &str = ".wh.";
/// Bits of a folder without which its owner cannot fill it.
const OWNER: u32 = 0o700;

/// An open folder with the content of a layer.
pub(crate) struct Place {
    root: OwnedFd,
    whiteouts: Whiteouts,
    /// Whether files get the owners that the layer names.
    has_owners: bool,
    /// The folder of the last entry: the next one is usually beside it.
    last: Option<(PathBuf, OwnedFd)>,
}

fn failed(doing: &str, path: &Path, error: Errno) -> ImageError {
    ImageError::file(format!("{doing} {}", shown(path)), error.into())
}

impl Place {
    pub(crate) fn open(folder: &Path, whiteouts: Whiteouts) -> Result<Self, ImageError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, folder, flags, Mode::empty());
        let root = root.map_err(|error| failed("opening", folder, error))?;
        Ok(Self { root, whiteouts, has_owners: geteuid().is_root(), last: None })
    }

    /// The open folder of an entry. Missing folders are created.
    pub(crate) fn parent(&mut self, path: &Path) -> Result<OwnedFd, ImageError> {
        let parent = path.parent().unwrap_or_else(|| Path::new(""));
        let copied =
            |fd: &OwnedFd| fd.try_clone().map_err(|source| ImageError::file("opening a folder", source));
        if let Some((_, fd)) = self.last.as_ref().filter(|(last, _)| last == parent) {
            return copied(fd);
        }
        let fd = self.open_folders(parent, path)?;
        self.last = Some((parent.to_owned(), copied(&fd)?));
        Ok(fd)
    }

    fn open_folders(&self, folder: &Path, path: &Path) -> Result<OwnedFd, ImageError> {
        if folder.as_os_str().is_empty() {
            return self.root.try_clone().map_err(|source| ImageError::file("opening a folder", source));
        }
        match self.open_folder(folder) {
            Err(Errno::NOENT) => {}
            opened => return opened.map_err(|error| not_beneath(error, folder, path)),
        }
        let mut made = PathBuf::new();
        for name in folder {
            made.push(name);
            match rustix::fs::mkdirat(&self.root, &made, Mode::from_raw_mode(0o755)) {
                // Checked when it is opened: a link on the way ends this.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed("creating", &made, error)),
            }
            self.open_folder(&made).map_err(|error| not_beneath(error, &made, path))?;
        }
        self.open_folder(folder).map_err(|error| not_beneath(error, folder, path))
    }

    fn open_folder(&self, folder: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat2(&self.root, folder, flags, Mode::empty(), beneath())
    }

    /// Sets owner and mode of the root.
    pub(crate) fn set_root(&self, attributes: &Attributes) -> Result<(), ImageError> {
        self.set(&self.root, attributes, Path::new("."))
    }

    /// Creates a folder, or changes one that is there.
    pub(crate) fn folder(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        attributes: &Attributes,
        path: &Path,
    ) -> Result<(), ImageError> {
        let hides = Self::remove(parent, name, path)?;
        match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(OWNER)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("creating", path, error)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(parent, name, flags, Mode::empty());
        let fd = fd.map_err(|error| failed("opening", path, error))?;
        if hides {
            self.hide_lower(&fd, path)?;
        }
        self.set(&fd, attributes, path)
    }

    /// Creates an empty file.
    pub(crate) fn file(parent: &OwnedFd, name: &OsStr, path: &Path) -> Result<OwnedFd, ImageError> {
        Self::remove(parent, name, path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600));
        file.map_err(|error| exists(error, "creating", path))
    }

    /// Gives a written file its attributes.
    pub(crate) fn complete(
        &self,
        file: &File,
        attributes: &Attributes,
        path: &Path,
    ) -> Result<(), ImageError> {
        self.set(file, attributes, path)?;
        let time = time(attributes.modified);
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::futimens(file, &times).map_err(|error| failed("setting the time of", path, error))
    }

    pub(crate) fn symlink(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        target: &OsStr,
        attributes: &Attributes,
        path: &Path,
    ) -> Result<(), ImageError> {
        Self::remove(parent, name, path)?;
        rustix::fs::symlinkat(target, parent, name).map_err(|error| exists(error, "creating", path))?;
        if self.has_owners {
            let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
            let owned = rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
            owned.map_err(|error| failed("setting the owner of", path, error))?;
        }
        let time = time(attributes.modified);
        let times = Timestamps { last_access: time, last_modification: time };
        let set = rustix::fs::utimensat(parent, name, &times, AtFlags::SYMLINK_NOFOLLOW);
        set.map_err(|error| failed("setting the time of", path, error))
    }

    /// Gives a file of the same layer another name.
    pub(crate) fn hard_link(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        target: &Path,
        path: &Path,
    ) -> Result<(), ImageError> {
        let missing = || {
            let (path, target) = (shown(path), shown(target));
            ImageError::Invalid(format!(
                "{path} is a hard link to {target}, which is not an earlier file of its layer"
            ))
        };
        if target == path {
            return Err(missing());
        }
        let folder = target.parent().unwrap_or_else(|| Path::new(""));
        let of_target = if folder.as_os_str().is_empty() {
            self.root.try_clone().map_err(|source| ImageError::file("opening a folder", source))?
        } else {
            self.open_folder(folder).map_err(|_| missing())?
        };
        let Some(own) = target.file_name() else { return Err(missing()) };
        let stat = rustix::fs::statat(&of_target, own, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| missing())?;
        if !matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::Symlink) {
            return Err(missing());
        }
        Self::remove(parent, name, path)?;
        let linked = rustix::fs::linkat(&of_target, own, parent, name, AtFlags::empty());
        linked.map_err(|error| exists(error, "linking", path))
    }

    /// Hides a name of lower layers, but nothing of this one.
    pub(crate) fn whiteout(&mut self, parent: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), ImageError> {
        let there = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
        match there.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::Directory) => {
                let fd = Self::open_in(parent, name, path)?;
                return self.hide_lower(&fd, path);
            }
            Ok(_) => return Ok(()),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(failed("reading", path, error)),
        }
        let made = match self.whiteouts {
            Whiteouts::Overlay => {
                rustix::fs::mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0)
            }
            Whiteouts::Files => {
                let mut marker = WHITEOUT_PREFIX.to_owned().into_bytes();
                marker.extend_from_slice(std::os::unix::ffi::OsStrExt::as_bytes(name));
                marker_file(parent, &marker)
            }
        };
        made.map_err(|error| failed("hiding", path, error))
    }

    /// Hides what lower layers have in this folder.
    pub(crate) fn hide_lower(&self, folder: &OwnedFd, path: &Path) -> Result<(), ImageError> {
        let set = match self.whiteouts {
            Whiteouts::Overlay => rustix::fs::fsetxattr(folder, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty()),
            Whiteouts::Files => marker_file(folder, OPAQUE_FILE.as_bytes()),
        };
        set.map_err(|error| failed("hiding lower layers of", path, error))
    }

    fn open_in(parent: &OwnedFd, name: &OsStr, path: &Path) -> Result<OwnedFd, ImageError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(parent, name, flags, Mode::empty());
        fd.map_err(|error| failed("opening", path, error))
    }

    /// Removes a file, link or whiteout that an entry replaces; returns whether it was a whiteout.
    fn remove(parent: &OwnedFd, name: &OsStr, path: &Path) -> Result<bool, ImageError> {
        let there = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(failed("reading", path, error)),
        };
        if there == FileType::Directory {
            return Ok(false);
        }
        let removed = rustix::fs::unlinkat(parent, name, AtFlags::empty());
        removed.map_err(|error| failed("replacing", path, error))?;
        Ok(there == FileType::CharacterDevice)
    }

    fn set(
        &self,
        fd: impl std::os::fd::AsFd,
        attributes: &Attributes,
        path: &Path,
    ) -> Result<(), ImageError> {
        let fd = fd.as_fd();
        let mut mode = attributes.mode;
        if self.has_owners {
            let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
            let owned = rustix::fs::fchown(fd, Some(uid), Some(gid));
            owned.map_err(|error| failed("setting the owner of", path, error))?;
        } else {
            // It is filled, and removed, by its owner.
            mode |= OWNER;
        }
        let set = rustix::fs::fchmod(fd, Mode::from_raw_mode(mode));
        set.map_err(|error| failed("setting the mode of", path, error))
    }
}

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

fn marker_file(folder: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder.as_fd(), name, flags, Mode::from_raw_mode(0o600)).map(drop)
}

/// An error at an entry in whose place is a folder.
fn exists(error: Errno, doing: &str, path: &Path) -> ImageError {
    if error == Errno::EXIST {
        return ImageError::Invalid(format!("{} replaces a folder of its own layer", shown(path)));
    }
    failed(doing, path, error)
}

/// An error at the folders of an entry: what is in the way is the layer's fault.
fn not_beneath(error: Errno, folder: &Path, path: &Path) -> ImageError {
    let is_in_the_way = matches!(error, Errno::LOOP | Errno::NOTDIR | Errno::XDEV | Errno::NAMETOOLONG);
    if is_in_the_way {
        let folder = shown(folder);
        return ImageError::Invalid(format!("{} is below {folder}, which is a link or a file", shown(path)));
    }
    failed("opening", folder, error)
}

fn time(seconds: u64) -> Timespec {
    // Times that the file system cannot store are cut by the kernel.
    Timespec { tv_sec: i64::try_from(seconds).unwrap_or(0), tv_nsec: 0 }
}

/// Whether this process can unpack layers for overlays below `folder`: it may create whiteouts and set their attribute.
pub(crate) fn can_overlay(folder: &Path) -> io::Result<bool> {
    if !geteuid().is_root() {
        return Ok(false);
    }
    let probe = tempdir(folder)?;
    let place = rustix::fs::openat(CWD, &probe, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let made = rustix::fs::mknodat(&place, "whiteout", FileType::CharacterDevice, Mode::empty(), 0)
        .and_then(|()| rustix::fs::fsetxattr(&place, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty()));
    drop(place);
    std::fs::remove_dir_all(&probe)?;
    Ok(made.is_ok())
}

fn tempdir(folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join(format!("probe-{}", std::process::id()));
    std::fs::create_dir_all(&path)?;
    Ok(path)
}
