//! Finds the outputs of an action. Opens nothing but directories and follows no symlink out of the input root.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use invariant::{Present as _, impossible};
use model::BlobDigest;
use reapi::{
    directory::AbsoluteTargets,
    execution::{NodeProperties, OutputSymlink, SymlinkNode},
    protobuf::{Timestamp, UInt32Value},
};
use rustix::fs::{FileType, Stat};

use crate::{
    CollectError, at,
    plan::DEPTH_MAX,
    spec::{Output, OutputSpec, Wanted},
};

#[derive(Debug, Default)]
pub(crate) struct FoundOutputs {
    pub(crate) nodes: Vec<OutputNode>,
    /// Directories, each before those below it.
    pub(crate) dirs: Vec<FoundDir>,
    pub(crate) files: Vec<FoundFile>,
}

#[derive(Debug)]
pub(crate) enum OutputNode {
    File {
        path: String,
        file: usize,
    },
    Link {
        link: OutputSymlink,
        kind: LinkKind,
    },
    /// Its directories are `dirs[first..end]`.
    Directory {
        path: String,
        first: usize,
        end: usize,
    },
}

/// The kind of output that clients before version 2.1 expect for a symlink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkKind {
    File,
    Directory,
}

/// A directory of an output.
#[derive(Debug)]
pub(crate) struct FoundDir {
    /// Path relative to the input root.
    pub(crate) place: String,
    /// Its files are `files[first..end]`, sorted by name.
    pub(crate) first: usize,
    pub(crate) end: usize,
    pub(crate) links: Vec<SymlinkNode>,
    /// Names of its subdirectories and their indexes in `dirs`, sorted by name.
    pub(crate) dirs: Vec<(Box<str>, usize)>,
    pub(crate) mode: Option<UInt32Value>,
}

/// A file of an output.
#[derive(Debug)]
pub(crate) struct FoundFile {
    pub(crate) name: Box<str>,
    /// Index of its directory in `dirs`. `None`: the file is itself an output, and `name` is its path.
    pub(crate) dir: Option<usize>,
    pub(crate) executable: bool,
    pub(crate) props: Option<Box<NodeProperties>>,
    pub(crate) inode: u64,
    pub(crate) changed_at: (i64, i64),
    /// Whether it has several names.
    pub(crate) shared: bool,
    pub(crate) owner: u32,
    pub(crate) size: u64,
    /// Whether it carries more than content, owner, mode and times.
    pub(crate) has_extras: bool,
    pub(crate) digest: Option<BlobDigest>,
}

/// Walks through the outputs of an action.
pub(crate) struct Walk {
    pub(crate) root: PathBuf,
    pub(crate) spec: OutputSpec,
    pub(crate) entries_max: u64,
    pub(crate) absolute: AbsoluteTargets,
    /// Our own user id.
    pub(crate) uid: u32,
}

impl Walk {
    pub(crate) fn all(&self) -> Result<FoundOutputs, CollectError> {
        let shown = self.root.display().to_string();
        let root = at::open_path(&self.root).map_err(CollectError::io("opening", shown))?;
        let mut found = FoundOutputs::default();
        for output in &self.spec.outputs {
            self.output(&root, output, &mut found)?;
        }
        Ok(found)
    }

    fn output(&self, root: &OwnedFd, output: &Output, found: &mut FoundOutputs) -> Result<(), CollectError> {
        let (parent, name) = output.place.rsplit_once('/').unwrap_or(("", &output.place));
        let failed = || CollectError::io("reading output", &*output.path);
        let parent = match at::open_beneath(root, parent) {
            Ok(parent) => parent,
            Err(error) => {
                return match reached(&error) {
                    Reached::Nothing => Ok(()),
                    Reached::Outside => Err(CollectError::Outside { path: output.path.clone() }),
                    Reached::Unknown => Err(failed()(error)),
                };
            }
        };
        // The input root itself has no name within itself.
        let name = if name.is_empty() { "." } else { name };
        let stat = match at::stat(&parent, name) {
            Ok(stat) => stat,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed()(error)),
        };
        let wrong = |wanted, found| Err(CollectError::WrongKind { path: output.path.clone(), wanted, found });
        match (FileType::from_raw_mode(stat.st_mode), output.wanted) {
            (FileType::RegularFile, Wanted::Directory) => wrong("directory", "file"),
            (FileType::Directory, Wanted::File) => wrong("file", "directory"),
            (FileType::RegularFile, Wanted::Any | Wanted::File) => {
                let name = CString::new(name).map_err(|error| failed()(error.into()))?;
                let file = self.file(parent.as_fd(), &name, &stat, &output.place, None).map_err(failed())?;
                found.nodes.push(OutputNode::File { path: output.path.clone(), file: found.files.len() });
                found.push(file, self.entries_max)
            }
            (FileType::Directory, Wanted::Any | Wanted::Directory) => {
                let name = CString::new(name).map_err(|error| failed()(error.into()))?;
                let fd = at::open_any(parent.as_fd(), &name, self.uid).map_err(failed())?;
                let first = found.dirs.len();
                self.directory(fd.as_fd(), output, output.place.clone(), 0, found)?;
                let end = found.dirs.len();
                found.nodes.push(OutputNode::Directory { path: output.path.clone(), first, end });
                Ok(())
            }
            (FileType::Symlink, wanted) => {
                let target = self.target(parent.as_fd(), name, &output.path)?;
                let kind = kind_of_target(root, &output.place);
                match (kind, wanted) {
                    (Some(LinkKind::File), Wanted::Directory) => {
                        return wrong("directory", "symlink to a file");
                    }
                    (Some(LinkKind::Directory), Wanted::File) => {
                        return wrong("file", "symlink to a directory");
                    }
                    (Some(_) | None, Wanted::Any | Wanted::File | Wanted::Directory) => {}
                }
                let kind = kind.unwrap_or(match wanted {
                    Wanted::Any | Wanted::File => LinkKind::File,
                    Wanted::Directory => LinkKind::Directory,
                });
                let link = OutputSymlink { path: output.path.clone(), target, node_properties: None };
                found.nodes.push(OutputNode::Link { link, kind });
                Ok(())
            }
            (other, _) => Err(special(other, &output.path)),
        }
    }

    /// Finds a directory and all below it. Returns its index in `dirs`.
    fn directory(
        &self,
        fd: BorrowedFd<'_>,
        output: &Output,
        place: String,
        depth: u32,
        found: &mut FoundOutputs,
    ) -> Result<usize, CollectError> {
        if depth >= DEPTH_MAX {
            return Err(CollectError::TooDeep { path: output.path.clone(), max: DEPTH_MAX });
        }
        let failed = || CollectError::io("reading output directory", &*place);
        let mode = rustix::fs::fstat(fd).map_err(|error| failed()(error.into()))?.st_mode & 0o777;
        let mode = self.spec.unix_mode.then_some(UInt32Value { value: mode });
        let number = found.dirs.len();
        let first = found.files.len();
        let (links, dirs) = (Vec::new(), Vec::new());
        found.dirs.push(FoundDir { place: String::new(), first, end: first, links, dirs, mode: None });
        let mut entries = at::entries(fd).map_err(failed())?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut links = Vec::new();
        let mut below = Vec::new();
        for entry in entries {
            let name = text(&entry.name, &place)?;
            match entry.kind {
                FileType::RegularFile => {
                    let stat = at::stat(fd, &*entry.name).map_err(failed())?;
                    let file = self.file(fd, &entry.name, &stat, name, Some(number)).map_err(failed())?;
                    found.push(file, self.entries_max)?;
                }
                FileType::Symlink => {
                    let target = self.target(fd, name, &below_of(&place, name))?;
                    links.push(SymlinkNode { name: name.into(), target, node_properties: None });
                }
                FileType::Directory => below.push(entry.name),
                FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => return Err(special(entry.kind, &below_of(&place, name))),
            }
        }
        let end = found.files.len();
        let mut dirs = Vec::with_capacity(below.len());
        for name in below {
            let child = at::open_any(fd, &name, self.uid).map_err(failed())?;
            let name = text(&name, &place)?;
            let at = self.directory(child.as_fd(), output, below_of(&place, name), depth + 1, found)?;
            dirs.push((name.into(), at));
        }
        let entries = found.files.len() + found.dirs.len() + links.len();
        if let Some(dir) = found.dirs.get_mut(number) {
            *dir = FoundDir { place, first, end, links, dirs, mode };
        } else {
            impossible!("output directory {number} disappeared from the list");
        }
        if entries as u64 > self.entries_max {
            return Err(CollectError::TooMany { max: self.entries_max });
        }
        Ok(number)
    }

    /// Examines a file; `shown` is its name in the result.
    fn file(
        &self,
        at: BorrowedFd<'_>,
        name: &CStr,
        stat: &Stat,
        shown: &str,
        dir: Option<usize>,
    ) -> io::Result<FoundFile> {
        if self.uid != 0 && stat.st_mode & 0o400 == 0 {
            // If actions run as our own user, an action may have removed our permission to read its outputs.
            at::unlock(at, name, self.uid)?;
        }
        // If they run as another user, files are linked, so extras of a file would be passed on with it.
        let has_extras = self.uid == 0 && at::has_extras(at::open_file(at, name)?)?;
        let props = (self.spec.mtime || self.spec.unix_mode).then(|| {
            let nanos = i32::try_from(stat.st_mtime_nsec).present("the nanoseconds of a file time");
            Box::new(NodeProperties {
                properties: Vec::new(),
                mtime: self.spec.mtime.then_some(Timestamp { seconds: stat.st_mtime, nanos }),
                unix_mode: self.spec.unix_mode.then_some(UInt32Value { value: stat.st_mode & 0o777 }),
            })
        });
        Ok(FoundFile {
            name: shown.into(),
            dir,
            executable: stat.st_mode & 0o111 != 0,
            props,
            inode: stat.st_ino,
            changed_at: at::changed_at(stat),
            shared: stat.st_nlink > 1,
            owner: stat.st_uid,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            has_extras,
            digest: None,
        })
    }

    fn target(&self, at: BorrowedFd<'_>, name: &str, shown: &str) -> Result<String, CollectError> {
        let target = at::read_link(at, name).map_err(CollectError::io("reading symlink", shown))?;
        let target = target.into_string().map_err(|_| CollectError::NotText { path: shown.to_owned() })?;
        match self.absolute {
            AbsoluteTargets::Refused if target.starts_with('/') => {
                Err(CollectError::AbsoluteTarget { path: shown.to_owned(), target })
            }
            AbsoluteTargets::Refused | AbsoluteTargets::Allowed => Ok(target),
        }
    }
}

impl FoundOutputs {
    fn push(&mut self, file: FoundFile, max: u64) -> Result<(), CollectError> {
        self.files.push(file);
        if (self.files.len() + self.dirs.len()) as u64 > max {
            return Err(CollectError::TooMany { max });
        }
        Ok(())
    }
}

/// How the resolution of a path ended.
enum Reached {
    Nothing,
    Outside,
    Unknown,
}

fn reached(error: &io::Error) -> Reached {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::NOTDIR) => Reached::Nothing,
        Some(Errno::XDEV | Errno::LOOP) => Reached::Outside,
        _ => Reached::Unknown,
    }
}

/// Returns the kind of a symlink's target, if that is within the input root. Opens only directories.
fn kind_of_target(root: &OwnedFd, place: &str) -> Option<LinkKind> {
    if at::open_beneath(root, place).is_ok() {
        return Some(LinkKind::Directory);
    }
    // Opened as a path only, so that no device or pipe is opened.
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let resolve = rustix::fs::ResolveFlags::BENEATH | rustix::fs::ResolveFlags::NO_MAGICLINKS;
    let fd = rustix::fs::openat2(root, place, flags, rustix::fs::Mode::empty(), resolve).ok()?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(LinkKind::File)
}

fn below_of(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}/{name}") }
}

fn text<'a>(name: &'a CStr, place: &str) -> Result<&'a str, CollectError> {
    name.to_str().map_err(|_| CollectError::NotText { path: below_of(place, &name.to_string_lossy()) })
}

fn special(kind: FileType, path: &str) -> CollectError {
    let kind = match kind {
        FileType::Fifo => "named pipe",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::RegularFile | FileType::Directory | FileType::Symlink | FileType::Unknown => {
            "file of unknown kind"
        }
    };
    CollectError::Special { path: path.to_owned(), kind }
}
