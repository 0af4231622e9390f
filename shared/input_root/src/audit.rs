//! After an action: puts a tree back into the state it was set up in, or finds that it cannot be.
//!
//! What the action added is moved away. What it removed or replaced is not repaired: the directory counts as broken,
//! and so do those above it; those below and beside it stay usable.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
};

use rustix::fs::{FileType, Stat};

use crate::{
    at,
    made::{Made, Stamp},
    plan::{Plan, PlanFile},
    sweep::{DIRECTORY_MODE, Yard},
};

/// Checks trees.
pub(crate) struct Audit<'a> {
    pub(crate) yard: &'a Yard,
    /// Who owns what is shared with the store: us.
    pub(crate) uid: u32,
    /// What was found too much, to be thrown away.
    pub(crate) junk: Vec<PathBuf>,
}

/// What a name is in a plan.
enum Planned {
    File(usize),
    Link(usize),
    Dir(usize),
    Nothing,
}

/// Which entries of a directory were found as they should be.
struct Found {
    files: usize,
    links: usize,
    dirs: Vec<bool>,
    extra: Vec<CString>,
}

impl Audit<'_> {
    /// Checks the directory with that name. Afterwards `made` says what is still as it was set up.
    pub(crate) fn check(&mut self, at: BorrowedFd<'_>, name: &CStr, made: &mut Made) -> io::Result<()> {
        made.whole = false;
        let fd = self.yard.open_any(at, name)?;
        let fd = fd.as_fd();
        let clean = !at::has_extras(fd)?;
        self.yard.own(fd)?;
        let found = self.compare(fd, made)?;
        for name in &found.extra {
            self.junk.push(self.yard.throw(fd, name)?);
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
                // Whatever it is, nobody will be given it.
                child.forget();
            }
            whole &= child.whole;
        }
        whole &= restore(fd, &plan)?;
        made.whole = whole;
        Ok(())
    }

    fn compare(&self, fd: BorrowedFd<'_>, made: &Made) -> io::Result<Found> {
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
    /// only when the store gave it up; ours would not be its only name otherwise.
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

/// The mode of an input file.
pub(crate) fn file_mode(executable: bool) -> u32 {
    if executable { 0o555 } else { 0o444 }
}

impl Made {
    /// Nothing of it can be used.
    fn forget(&mut self) {
        self.whole = false;
        for child in self.dirs.iter_mut().flatten() {
            child.forget();
        }
    }
}

/// Gives a directory the mode and times it is planned to have, else those of a new one.
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
