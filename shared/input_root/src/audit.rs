//! After an action: restores a tree to the state it was set up in, or finds that this is impossible.
//!
//! Files that the action added are moved away. Files that it removed or replaced are not repaired: the directory
//! counts as broken, and so do the directories above it; those below and beside it stay usable.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
};

use rustix::fs::{FileType, Stat};

use crate::{
    at,
    plan::{Plan, PlanFile},
    prepared_dir::{PreparedDir, Stamp},
    sweep::{DIRECTORY_MODE, Recycler},
};

pub(crate) struct Audit<'a> {
    pub(crate) recycler: &'a Recycler,
    /// Owner of the files shared with the store: ourselves.
    pub(crate) uid: u32,
    /// Unexpected files and directories, to be removed.
    pub(crate) to_remove: Vec<PathBuf>,
}

/// The kind of a name in a plan.
enum Planned {
    File(usize),
    Link(usize),
    Dir(usize),
    Nothing,
}

/// The entries of a directory that are unchanged.
struct Found {
    files: usize,
    links: usize,
    dirs: Vec<bool>,
    extra: Vec<CString>,
}

impl Audit<'_> {
    /// Checks the directory `name`. Afterwards `made` contains what is still as it was set up.
    pub(crate) fn check(
        &mut self,
        at: BorrowedFd<'_>,
        name: &CStr,
        made: &mut PreparedDir,
    ) -> io::Result<()> {
        made.whole = false;
        let fd = self.recycler.open_any(at, name)?;
        let fd = fd.as_fd();
        let clean = !at::has_extras(fd)?;
        self.recycler.reset_owner(fd)?;
        let found = self.compare(fd, made)?;
        for name in &found.extra {
            self.to_remove.push(self.recycler.move_to_trash(fd, name)?);
        }
        let mut whole = clean && found.files == made.plan.files.len() && found.links == made.plan.links.len();
        let plan = std::sync::Arc::clone(&made.plan);
        for ((slot, (name, _)), there) in made.dirs.iter_mut().zip(&plan.dirs).zip(&found.dirs) {
            if !there {
                *slot = None;
            }
            let Some(child) = slot else {
                whole = false;
                continue;
            };
            if self.check(fd, &CString::new(&**name)?, child).is_err() {
                // Whatever it is, no action will use it.
                child.forget();
            }
            whole &= child.whole;
        }
        whole &= restore(fd, &plan)?;
        made.whole = whole;
        Ok(())
    }

    fn compare(&self, fd: BorrowedFd<'_>, made: &PreparedDir) -> io::Result<Found> {
        let plan = &made.plan;
        let dirs = vec![false; plan.dirs.len()];
        let mut found = Found { files: 0, links: 0, dirs, extra: Vec::new() };
        for entry in at::entries(fd)? {
            let there = match planned(plan, &entry.name) {
                Planned::File(at) => match (plan.files.get(at), made.files.get(at)) {
                    (Some(file), Some(stamp)) if entry.kind == FileType::RegularFile => {
                        let same = self.is_file(&at::stat(fd, &*entry.name)?, file, *stamp);
                        found.files += usize::from(same);
                        same
                    }
                    _ => false,
                },
                Planned::Link(at) => match (plan.links.get(at), made.links.get(at)) {
                    (Some(link), Some(stamp)) if entry.kind == FileType::Symlink => {
                        let same = Stamp::own(&at::stat(fd, &*entry.name)?) == *stamp
                            && at::read_link(fd, &*entry.name)?.as_bytes() == link.target.as_bytes();
                        found.links += usize::from(same);
                        same
                    }
                    _ => false,
                },
                Planned::Dir(at) => match found.dirs.get_mut(at) {
                    Some(there) if entry.kind == FileType::Directory => {
                        *there = true;
                        true
                    }
                    _ => false,
                },
                Planned::Nothing => false,
            };
            if !there {
                found.extra.push(entry.name);
            }
        }
        Ok(found)
    }

    /// Whether this is the file that was put there. The inode of a file of the store's can have become another file's
    /// only if the store gave it up; otherwise our name would not be its only one.
    fn is_file(&self, stat: &Stat, file: &PlanFile, stamp: Stamp) -> bool {
        let same = u64::try_from(stat.st_size).is_ok_and(|size| size == file.digest.size);
        same && match stamp {
            Stamp::Linked { inode } => {
                stat.st_ino == inode
                    && stat.st_uid == self.uid
                    && stat.st_nlink > 1
                    && at::mode_of(stat) == file_mode(file.executable)
            }
            Stamp::Own { .. } => Stamp::own(stat) == stamp,
        }
    }
}

/// Permissions of an input file.
pub(crate) fn file_mode(executable: bool) -> u32 {
    if executable { 0o555 } else { 0o444 }
}

impl PreparedDir {
    /// Marks all of it as unusable.
    fn forget(&mut self) {
        self.whole = false;
        for child in self.dirs.iter_mut().flatten() {
            child.forget();
        }
    }
}

/// Gives a directory its planned mode and times, or else those of a new one.
pub(crate) fn restore(fd: BorrowedFd<'_>, plan: &Plan) -> io::Result<bool> {
    if let Some(mode) = plan.props.and_then(|props| props.mode) {
        at::set_mode(fd, mode)?;
    }
    at::set_times(fd, plan.props.and_then(|props| props.mtime))?;
    let mode = plan.props.and_then(|props| props.mode).unwrap_or(DIRECTORY_MODE);
    Ok(at::mode_of(&rustix::fs::fstat(fd)?) == mode)
}

fn planned(plan: &Plan, name: &CStr) -> Planned {
    let Ok(name) = name.to_str() else { return Planned::Nothing };
    if let Ok(at) = plan.files.binary_search_by(|file| (*file.name).cmp(name)) {
        return Planned::File(at);
    }
    if let Ok(at) = plan.dirs.binary_search_by(|(dir, _)| (**dir).cmp(name)) {
        return Planned::Dir(at);
    }
    plan.links.binary_search_by(|link| (*link.name).cmp(name)).map_or(Planned::Nothing, Planned::Link)
}
