//! Sets up a tree on the disk: reuses directories kept from earlier actions by one rename each, and creates the rest.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use invariant::{Present as _, impossible};
use model::BlobDigest;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags},
    io::Errno,
};

use crate::{
    Owner, at,
    audit::{file_mode, restore},
    plan::{Plan, PlanFile},
    pool::Pool,
    prepared_dir::{PreparedDir, Stamp},
    sweep::Recycler,
};

/// Maximum number of files that are looked up in the store and put in place at once.
const FILES_TOGETHER: usize = 2048;

/// A tree with its directories but without its files.
#[derive(Debug)]
pub(crate) enum Draft {
    /// A whole directory kept from an earlier action.
    Ready(PreparedDir),
    /// A newly created directory.
    New {
        plan: Arc<Plan>,
        /// Its number in [`Outline::new`].
        number: usize,
        links: Box<[Stamp]>,
        dirs: Vec<Draft>,
    },
}

/// A new directory that still needs its files.
#[derive(Debug)]
pub(crate) struct NewDir {
    /// Path below the root; each name after a slash.
    pub(crate) path: String,
    pub(crate) plan: Arc<Plan>,
}

/// A draft and its new directories.
#[derive(Debug)]
pub(crate) struct Outline {
    pub(crate) draft: Draft,
    pub(crate) new: Arc<[NewDir]>,
}

/// A range of the files of one new directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) dir: usize,
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// The outcome of putting some files in place.
#[derive(Debug, Default)]
pub(crate) struct Placed {
    pub(crate) stamps: Vec<(Span, Vec<Stamp>)>,
    /// Blobs whose file was gone when it was to be linked.
    pub(crate) gone: Vec<BlobDigest>,
    /// Whether any copies were made that the action can write to.
    pub(crate) copied: bool,
}

pub(crate) struct TreeBuilder<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) recycler: &'a Recycler,
    pub(crate) owner: Option<Owner>,
    /// Whether files may be links to the store's own.
    pub(crate) link: bool,
}

impl TreeBuilder<'_> {
    /// Creates all directories and symlinks in the new folder `root`.
    pub(crate) fn outline(&self, root: &Path, plan: &Arc<Plan>) -> io::Result<Outline> {
        let name = root.to_str().ok_or_else(|| io::Error::from(Errno::ILSEQ))?;
        let mut new = Vec::new();
        let draft = self.directory(CWD, name, plan, String::new(), &mut new)?;
        Ok(Outline { draft, new: new.into() })
    }

    fn directory(
        &self,
        at: BorrowedFd<'_>,
        name: &str,
        plan: &Arc<Plan>,
        path: String,
        new: &mut Vec<NewDir>,
    ) -> io::Result<Draft> {
        while let Some((kept, made)) = self.pool.take(&plan.digest) {
            match at::rename(CWD, &*kept, at, name) {
                Ok(()) => return Ok(Draft::Ready(made)),
                // It was just removed, or its mode prevents moving it. There may be another.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
                Err(error) => return Err(error),
            }
        }
        let fd = self.recycler.make_dir(at, name)?;
        let links = plan.links.iter().map(|link| {
            rustix::fs::symlinkat(&*link.target, &fd, &*link.name)?;
            if let Some(mtime) = link.mtime {
                at::set_link_times(&fd, &*link.name, mtime)?;
            }
            Ok(Stamp::own(&at::stat(&fd, &*link.name)?))
        });
        let links = links.collect::<io::Result<_>>()?;
        let mut dirs = Vec::with_capacity(plan.dirs.len());
        for (name, child) in &plan.dirs {
            dirs.push(self.directory(fd.as_fd(), name, child, format!("{path}/{name}"), new)?);
        }
        let number = new.len();
        new.push(NewDir { path, plan: Arc::clone(plan) });
        Ok(Draft::New { plan: Arc::clone(plan), number, links, dirs })
    }

    /// Puts files in place; `sources` are their paths in the store, in the order of the spans.
    pub(crate) fn place(
        &self,
        root: &Path,
        new: &[NewDir],
        spans: &[Span],
        sources: &[PathBuf],
    ) -> io::Result<Placed> {
        let mut placed = Placed::default();
        let mut sources = sources.iter();
        for span in spans {
            let Some(dir) = new.get(span.dir) else {
                impossible!("files belong to new directory {}, which does not exist", span.dir);
                continue;
            };
            let fd = open_new(root, &dir.path)?;
            let files = dir.plan.files.iter().skip(span.first).take(span.count);
            let mut stamps = Vec::with_capacity(span.count);
            for (file, source) in files.zip(sources.by_ref().take(span.count)) {
                match self.put(source, fd.as_fd(), file) {
                    Ok((stamp, copied)) => {
                        stamps.push(stamp);
                        placed.copied |= copied;
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => placed.gone.push(file.digest),
                    Err(error) => return Err(error),
                }
            }
            placed.stamps.push((*span, stamps));
        }
        Ok(placed)
    }

    /// Puts one file in place. Also returns whether it is a copy that the action can write to.
    fn put(&self, source: &Path, at: BorrowedFd<'_>, file: &PlanFile) -> io::Result<(Stamp, bool)> {
        if self.link && file.props.is_none() {
            let link = || rustix::fs::linkat(CWD, source, at, &*file.name, AtFlags::empty());
            match again_if_there(at, file, link) {
                Ok(()) => {
                    let inode = at::stat(at, &*file.name)?.st_ino;
                    return Ok((Stamp::Linked { inode }, false));
                }
                // A different file system, one without links, or a file with the maximum number of names.
                Err(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::NOTSUP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.copy(source, at, file)
    }

    /// A copy belongs to us and is as read-only as a link would be, so that an action that overwrites its inputs
    /// fails in the same way everywhere. With a mode of its own it belongs to the user that runs the action: the mode
    /// applies to that user.
    fn copy(&self, source: &Path, at: BorrowedFd<'_>, file: &PlanFile) -> io::Result<(Stamp, bool)> {
        let mut source = File::open(source)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(at, &*file.name, flags, Mode::RUSR | Mode::WUSR);
        let mut target = File::from(again_if_there(at, file, open)?);
        io::copy(&mut source, &mut target)?;
        let mode = file.props.as_ref().and_then(|props| props.mode);
        if let (Some(owner), Some(_)) = (self.owner, mode) {
            at::set_owner(&target, owner.uid, owner.gid)?;
        }
        at::set_mode(&target, mode.unwrap_or_else(|| file_mode(file.executable)))?;
        if let Some(mtime) = file.props.as_ref().and_then(|props| props.mtime) {
            at::set_times(&target, Some(mtime))?;
        }
        let stamp = Stamp::own(&rustix::fs::fstat(&target)?);
        Ok((stamp, self.owner.is_none() || mode.is_some()))
    }
}

/// Accepts an existing file: a second attempt finds what the first one put in place.
fn again_if_there<T>(
    at: BorrowedFd<'_>,
    file: &PlanFile,
    put: impl Fn() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    match put() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(at, &*file.name, AtFlags::empty())?;
            put()
        }
        done => done,
    }
}

fn open_new(root: &Path, path: &str) -> io::Result<OwnedFd> {
    let root = at::open_path(root)?;
    // These directories are ours until the action starts; no name of them is a symlink.
    at::open_beneath(root, path.trim_start_matches('/'))
}

/// Divides the files of all new directories into portions.
pub(crate) fn portions(new: &[NewDir]) -> Vec<Vec<Span>> {
    let mut portions = Vec::new();
    let mut portion = Vec::new();
    let mut room = FILES_TOGETHER;
    for (dir, NewDir { plan, .. }) in new.iter().enumerate() {
        let mut first = 0;
        while first < plan.files.len() {
            let count = room.min(plan.files.len() - first);
            portion.push(Span { dir, first, count });
            (first, room) = (first + count, room - count);
            if room == 0 {
                portions.push(std::mem::take(&mut portion));
                room = FILES_TOGETHER;
            }
        }
    }
    if !portion.is_empty() {
        portions.push(portion);
    }
    portions
}

/// Returns the blobs of the store that a portion needs.
pub(crate) fn wanted(new: &[NewDir], spans: &[Span]) -> Vec<(BlobDigest, bool)> {
    let files = |span: &Span| {
        let files = new.get(span.dir).map(|dir| &*dir.plan.files).present("the new directory of some files");
        files.iter().skip(span.first).take(span.count).map(|file| (file.digest, file.executable))
    };
    spans.iter().flat_map(files).collect()
}

/// Completes the tree: directories get the times and modes of the plan.
pub(crate) fn finish(
    root: &Path,
    outline: Outline,
    mut placed: Vec<(Span, Vec<Stamp>)>,
) -> io::Result<PreparedDir> {
    placed.sort_by_key(|(span, _)| (span.dir, span.first));
    let mut files: Vec<Vec<Stamp>> = outline.new.iter().map(|_| Vec::new()).collect();
    for (span, mut stamps) in placed {
        if let Some(files) = files.get_mut(span.dir) {
            files.append(&mut stamps);
        } else {
            impossible!("files were put into new directory {}, which does not exist", span.dir);
        }
    }
    for dir in outline.new.iter() {
        // Children come before their parents here, and nothing changes a directory after this.
        if dir.plan.props.is_some() {
            restore(open_new(root, &dir.path)?.as_fd(), &dir.plan)?;
        }
    }
    Ok(made(outline.draft, &mut files))
}

fn made(draft: Draft, files: &mut [Vec<Stamp>]) -> PreparedDir {
    match draft {
        Draft::Ready(made) => made,
        Draft::New { plan, number, links, dirs } => PreparedDir {
            files: files.get_mut(number).map(std::mem::take).present("the files of a new directory").into(),
            dirs: dirs.into_iter().map(|draft| Some(made(draft, files))).collect(),
            plan,
            stamp: None,
            links,
            whole: true,
        },
    }
}
