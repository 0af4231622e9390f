//! After an action: restores a tree to the state it was set up in, or finds that this is impossible.
//!
//! Of a directory that has not changed since it was last as planned, only the files are examined.
//!
//! Files that the action added are moved away. Files that it removed or replaced are not repaired: the directory
//! counts as broken, and so do the directories above it; those below and beside it stay usable.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
    sync::Arc,
};

use rustix::fs::{FileType, Stat};

use crate::{
    at,
    plan::{Plan, PlanFile},
    prepared_dir::{PreparedDir, Stamp},
    sweep::{DIRECTORY_MODE, Recycler},
};

pub(crate) struct Audit<'a> {
    recycler: &'a Recycler,
    /// Owner of the files shared with the store: ourselves.
    uid: u32,
    /// Maximum number of names in a directory.
    names_max: usize,
    trusts_stamps: bool,
    /// Whether no directory has more names.
    is_complete: bool,
    /// Unexpected files and directories, to be removed.
    to_remove: Vec<PathBuf>,
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

impl<'a> Audit<'a> {
    /// For one tree; directories with more than `names_max` names are not checked. `trusts_stamps`: each change of a
    /// directory changes its stamp.
    pub(crate) fn new(recycler: &'a Recycler, names_max: usize, trusts_stamps: bool) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { recycler, uid, names_max, trusts_stamps, is_complete: true, to_remove: Vec::new() }
    }

    /// Whether all directories were checked, and what must be removed, which already is out of the way.
    pub(crate) fn end(self) -> (bool, Vec<PathBuf>) {
        (self.is_complete, self.to_remove)
    }

    /// Checks the directory `name`, which is `unchanged` if it still had its stamp after the action. Afterwards `made`
    /// contains what is still as it was set up, unless a directory has too many names: then another check must follow.
    pub(crate) fn check(
        &mut self,
        at: BorrowedFd<'_>,
        name: &CStr,
        made: &mut PreparedDir,
        unchanged: bool,
    ) -> io::Result<()> {
        made.whole = false;
        let plan = Arc::clone(&made.plan);
        if unchanged && plan.entries == 1 {
            made.whole = true;
            return Ok(());
        }
        let fd = self.recycler.open_any(at, name)?;
        let fd = fd.as_fd();
        if unchanged && self.has_all(fd, made) {
            made.whole = self.check_children(fd, made, |_| true)?;
            return Ok(());
        }
        let clean = !at::has_extras(fd)?;
        self.recycler.reset_owner(fd)?;
        let Some(found) = self.compare(fd, made)? else {
            self.is_complete = false;
            return Ok(());
        };
        for name in &found.extra {
            self.to_remove.push(self.recycler.move_to_trash(fd, name)?);
        }
        let mut whole = clean && found.files == plan.files.len() && found.links == plan.links.len();
        whole &= self.check_children(fd, made, |at| found.dirs.get(at).is_some_and(|there| *there))?;
        let stat = restore(fd, &plan)?;
        made.whole = whole && at::mode_of(&stat) == planned_mode(&plan);
        made.stamp = Some(Stamp::own(&stat));
        Ok(())
    }

    /// Checks the subdirectories that are `there`, by their positions. Returns whether all are whole.
    fn check_children(
        &mut self,
        fd: BorrowedFd<'_>,
        made: &mut PreparedDir,
        there: impl Fn(usize) -> bool,
    ) -> io::Result<bool> {
        let mut whole = true;
        let plan = Arc::clone(&made.plan);
        for (at, (slot, (name, _))) in made.dirs.iter_mut().zip(&plan.dirs).enumerate() {
            if !there(at) {
                *slot = None;
            }
            let Some(child) = slot else {
                whole = false;
                continue;
            };
            let name = CString::new(&**name)?;
            let unchanged = self.trusts_stamps
                && child.stamp.is_some()
                && at::stat(fd, &*name).is_ok_and(|stat| child.stamp == Some(Stamp::own(&stat)));
            if self.check(fd, &name, child, unchanged).is_err() {
                // Whatever it is, no action will use it.
                child.forget();
            }
            whole &= child.whole;
        }
        Ok(whole)
    }

    /// Whether all files and symlinks of a directory are there as they were put there; all its names are still there.
    fn has_all(&self, fd: BorrowedFd<'_>, made: &PreparedDir) -> bool {
        let plan = &made.plan;
        let mut files = plan.files.iter().zip(&made.files);
        let mut links = plan.links.iter().zip(&made.links);
        files.all(|(file, stamp)| {
            at::stat(fd, &*file.name).is_ok_and(|stat| self.is_file(&stat, file, *stamp))
        }) && links
            .all(|(link, stamp)| at::stat(fd, &*link.name).is_ok_and(|stat| Stamp::own(&stat) == *stamp))
    }

    /// `None` if there are too many names.
    fn compare(&self, fd: BorrowedFd<'_>, made: &PreparedDir) -> io::Result<Option<Found>> {
        let plan = &made.plan;
        let dirs = vec![false; plan.dirs.len()];
        let mut found = Found { files: 0, links: 0, dirs, extra: Vec::new() };
        let Some(entries) = at::entries_up_to(fd, self.names_max)? else { return Ok(None) };
        for entry in entries {
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
        Ok(Some(found))
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

/// Gives a directory its planned mode and times, or else those of a new one. Returns its metadata.
pub(crate) fn restore(fd: BorrowedFd<'_>, plan: &Plan) -> io::Result<Stat> {
    if let Some(mode) = plan.props.and_then(|props| props.mode) {
        at::set_mode(fd, mode)?;
    }
    at::set_times(fd, plan.props.and_then(|props| props.mtime))?;
    Ok(rustix::fs::fstat(fd)?)
}

/// The mode of a directory that is set up.
fn planned_mode(plan: &Plan) -> u32 {
    plan.props.and_then(|props| props.mode).unwrap_or(DIRECTORY_MODE)
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
