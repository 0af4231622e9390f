//! The file-system calls that this crate is built on: relative to open directories, one name at a time, and
//! never through a symlink.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use invariant::Present as _;
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, IFlags, Mode, OFlags, RawDir, ResolveFlags, Stat, Timespec, Timestamps,
        UTIME_NOW, Uid,
    },
    io::Errno,
    path::Arg,
};

/// Flags with which directories are opened.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Bytes of names that are read from a directory at once, and bytes of a name as the kernel returns it, at most.
const LISTING_BYTES: usize = 32 << 10;
const NAME_BYTES: usize = 288;

/// Flags that users may set on their own directories, that outlive the content, and that are
/// neither mode nor attribute.
const SETTABLE: IFlags = IFlags::SYNC
    .union(IFlags::IMMUTABLE)
    .union(IFlags::APPEND)
    .union(IFlags::NODUMP)
    .union(IFlags::NOATIME)
    .union(IFlags::DIRSYNC)
    .union(IFlags::NOCOW)
    .union(IFlags::COMPRESSED)
    .union(IFlags::TOPDIR)
    .union(IFlags::PROJECT_INHERIT);

/// Opens a directory by one name; refuses symlinks.
pub(crate) fn open_dir(at: impl AsFd, name: impl Arg) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(at, name, DIRECTORY, Mode::empty())?)
}

/// Opens one of our own directories by its path.
pub(crate) fn open_path(path: &Path) -> io::Result<OwnedFd> {
    open_dir(CWD, path)
}

/// Opens a regular file for reading; does not wait if it has become something else.
pub(crate) fn open_file(at: impl AsFd, name: impl Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

/// Opens the directory at a relative path; follows symlinks that stay beneath `at`.
pub(crate) fn open_beneath(at: impl AsFd, path: &str) -> io::Result<OwnedFd> {
    let at = at.as_fd();
    if path.is_empty() {
        return open_dir(at, ".");
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    // EAGAIN: a concurrent rename made it impossible to resolve "..".
    let opened = rustix::io::retry_on_intr(|| {
        loop {
            match rustix::fs::openat2(at, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN) => {}
                other => return other,
            }
        }
    });
    match opened {
        // An old kernel or a system-call filter: walk the path without following symlinks.
        Err(Errno::NOSYS | Errno::PERM) => walk(at, path),
        other => Ok(other?),
    }
}

fn walk(at: impl AsFd, path: &str) -> io::Result<OwnedFd> {
    let mut names = path.split('/');
    let mut fd = open_dir(at, names.next().present_or(".", "the first part of a path"))?;
    for name in names {
        fd = open_dir(&fd, name)?;
    }
    Ok(fd)
}

/// Opens the directory at a relative path and creates its missing parts with `make`. Symlinks to directories
/// beneath `root` are allowed.
pub(crate) fn make_beneath(
    root: BorrowedFd<'_>,
    path: &str,
    make: impl Fn(BorrowedFd<'_>, &str) -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    let mut dir = open_dir(root, ".")?;
    let mut end = 0;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        end += name.len() + usize::from(end > 0);
        dir = match open_dir(&dir, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(dir.as_fd(), name)?,
            Err(error) if is_no_directory(&error) => open_beneath(root, path.get(..end).unwrap_or(path))?,
            opened => opened?,
        };
    }
    Ok(dir)
}

/// One name in a directory.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: CString,
    pub(crate) kind: FileType,
}

/// Opens a directory even if its owner, when that is the user `us`, removed our permission.
pub(crate) fn open_any(at: BorrowedFd<'_>, name: &CStr, us: u32) -> io::Result<OwnedFd> {
    match open_dir(at, name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            unlock(at, name, us)?;
            open_dir(at, name)
        }
        opened => opened,
    }
}

/// Sets all owner permissions on a file that belongs to the user `us`, which is ourselves.
pub(crate) fn unlock(at: BorrowedFd<'_>, name: &CStr, us: u32) -> io::Result<()> {
    let stat = stat(at, name)?;
    if stat.st_uid == us && FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        rustix::fs::chmodat(at, name, Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700), AtFlags::empty())?;
    }
    Ok(())
}

/// Lists all names in a directory, in no particular order.
pub(crate) fn entries(fd: impl AsFd) -> io::Result<Vec<Entry>> {
    entries_up_to(fd, usize::MAX).map(|found| found.present_or(Vec::new(), "the names of a directory"))
}

/// Like [`entries`]; `None` if there are more than `max`.
pub(crate) fn entries_up_to(fd: impl AsFd, max: usize) -> io::Result<Option<Vec<Entry>>> {
    let fd = fd.as_fd();
    let mut buffer = Vec::with_capacity(LISTING_BYTES.min(max.saturating_mul(NAME_BYTES)));
    let mut found = Vec::new();
    let mut reader = RawDir::new(fd, buffer.spare_capacity_mut());
    while let Some(entry) = reader.next() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let mut kind = entry.file_type();
        if kind == FileType::Unknown {
            kind = FileType::from_raw_mode(stat(fd, name)?.st_mode);
        }
        if found.len() == max {
            return Ok(None);
        }
        found.push(Entry { name: name.to_owned(), kind });
    }
    Ok(Some(found))
}

/// Reads the metadata of a name; does not follow symlinks.
pub(crate) fn stat(at: impl AsFd, name: impl Arg) -> io::Result<Stat> {
    Ok(rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Returns the permission bits.
pub(crate) fn mode_of(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}

/// Returns the time of the last change of an inode; users cannot set it.
pub(crate) fn changed_at(stat: &Stat) -> (i64, i64) {
    (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).present("the nanoseconds of a change time"))
}

/// Reads the target of a symlink.
pub(crate) fn read_link(at: impl AsFd, name: impl Arg) -> io::Result<CString> {
    Ok(rustix::fs::readlinkat(at, name, Vec::with_capacity(256))?)
}

/// Sets both times of an open file: to the given time, or to now.
pub(crate) fn set_times(fd: impl AsFd, mtime: Option<Timespec>) -> io::Result<()> {
    let time = mtime.unwrap_or(Timespec { tv_sec: 0, tv_nsec: UTIME_NOW });
    Ok(rustix::fs::futimens(fd, &Timestamps { last_access: time, last_modification: time })?)
}

/// Sets both times of a symlink.
pub(crate) fn set_link_times(at: impl AsFd, name: impl Arg, time: Timespec) -> io::Result<()> {
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(rustix::fs::utimensat(at, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Changes the owner of an open file.
pub(crate) fn set_owner(fd: impl AsFd, uid: u32, gid: u32) -> io::Result<()> {
    Ok(rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?)
}

/// Sets the permission bits of an open file.
pub(crate) fn set_mode(fd: impl AsFd, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))?)
}

/// Whether a file carries more than content, owner, mode and times: extended attributes (which include
/// access lists) or flags.
pub(crate) fn has_extras(fd: impl AsFd) -> io::Result<bool> {
    let fd = fd.as_fd();
    let flagged = match rustix::fs::ioctl_getflags(fd) {
        Ok(flags) => flags.intersects(SETTABLE),
        // The file system does not support flags.
        Err(Errno::NOTTY | Errno::NOTSUP | Errno::INVAL | Errno::NOSYS) => false,
        Err(error) => return Err(error.into()),
    };
    Ok(flagged || has_attributes(fd)?)
}

fn has_attributes(fd: impl AsFd) -> io::Result<bool> {
    let mut names = Vec::with_capacity(4096);
    match rustix::fs::flistxattr(fd, rustix::buffer::spare_capacity(&mut names)) {
        // Labels that the system puts on every file do not come from the action.
        Ok(_) => {
            Ok(names.split(|byte| *byte == 0).any(|name| !name.is_empty() && !name.starts_with(b"security.")))
        }
        Err(Errno::NOTSUP | Errno::NOSYS) => Ok(false),
        Err(Errno::RANGE) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Whether an error means that the name is not a directory.
pub(crate) fn is_no_directory(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOTDIR | Errno::LOOP))
}

/// Moves a name from one directory to another.
pub(crate) fn rename(from: impl AsFd, name: impl Arg, to: impl AsFd, new_name: impl Arg) -> io::Result<()> {
    Ok(rustix::fs::renameat(from, name, to, new_name)?)
}
