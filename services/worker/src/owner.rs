//! Users of builds, which own the files of their workspace: with `build_uid`, each workspace has one of its own.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
};

use images::Image;
use nix::{
    fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat2},
    unistd::{Gid, Uid, fchownat, getegid, geteuid},
};
use settings::WorkerSettings;
use shim::User;

/// Longest path that the kernel accepts, in bytes.
const PATH_MAX: usize = 4096;

/// The users of the commands in a workspace; `None`: that of the worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkspaceUsers {
    /// The user of its sandboxed builds.
    pub(crate) own: Option<User>,
    /// The user of services, and of builds in images that name a user. It is never root.
    pub(crate) without_rights: Option<User>,
}

impl WorkspaceUsers {
    /// The users of workspace `number`.
    pub(crate) fn of(settings: &WorkerSettings, number: u16) -> Self {
        if !geteuid().is_root() {
            return Self { own: None, without_rights: None };
        }
        let with = |id: u32| User { uid: id, gid: id };
        let own = settings.first_uid.and_then(|first| first.checked_add(u32::from(number))).map(with);
        Self { own, without_rights: own.or_else(|| Some(with(settings.service_uid))) }
    }

    /// The user of a sandboxed build in this image, if it has one. Root cannot appear as the user of an image.
    pub(crate) fn of_build(self, image: Option<&Image>) -> Option<User> {
        match image.and_then(|image| image.user.as_ref()) {
            Some(_) => self.without_rights,
            None => self.own,
        }
    }
}

/// Gives an empty folder, or one whose files have this owner already, to `user`, or else to the user of the worker.
pub(crate) fn give_folder(folder: &Path, user: Option<User>) -> io::Result<()> {
    let user = user.unwrap_or(User { uid: geteuid().as_raw(), gid: getegid().as_raw() });
    let top = open(AT_FDCWD, folder, ResolveFlag::empty())?;
    let metadata = File::from(top.try_clone()?).metadata()?;
    if metadata.is_dir() && metadata.uid() != user.uid {
        change(&top, user)?;
    }
    Ok(())
}

/// Gives the folder, and what the worker made in it, to the user. Links are not followed, although processes of that user may
/// change the folder at the same time. A file with several names stays as it is: it may have a name elsewhere.
pub(crate) fn give(folder: &Path, user: User) -> io::Result<()> {
    let top = open(AT_FDCWD, folder, ResolveFlag::empty())?;
    if !give_one(&top, user)? {
        return Ok(());
    }
    let mut folders = vec![PathBuf::from(".")];
    while let Some(path) = folders.pop() {
        let folder = open(&top, &path, ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS)?;
        // Through the descriptor, because the path may lead elsewhere by now.
        for entry in fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))? {
            let name = entry?.file_name();
            let opened = match open(&folder, Path::new(&name), ResolveFlag::RESOLVE_NO_SYMLINKS) {
                // A process of the user removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let below = path.join(name);
            // The worker makes nothing that deep.
            if give_one(&opened, user)? && below.as_os_str().len() < PATH_MAX {
                folders.push(below);
            }
        }
    }
    Ok(())
}

fn open(at: impl std::os::fd::AsFd, path: &Path, resolve: ResolveFlag) -> io::Result<OwnedFd> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC);
    Ok(openat2(at, path, how.resolve(resolve))?)
}

/// Returns whether it is a folder.
fn give_one(entry: &OwnedFd, user: User) -> io::Result<bool> {
    let metadata = File::from(entry.try_clone()?).metadata()?;
    let is_ours = metadata.uid() == geteuid().as_raw();
    if is_ours && (metadata.is_dir() || metadata.nlink() == 1) {
        change(entry, user)?;
    }
    Ok(metadata.is_dir())
}

fn change(entry: &OwnedFd, user: User) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    Ok(fchownat(entry, "", Some(uid), Some(gid), AtFlags::AT_EMPTY_PATH)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const USER: User = User { uid: 41_007, gid: 41_007 };

    #[test]
    fn a_folder_has_the_owner_of_the_next_build() {
        if !geteuid().is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        for (user, wanted) in [(Some(USER), USER.uid), (Some(USER), USER.uid), (None, 0)] {
            give_folder(place.path(), user).unwrap();
            assert_eq!(fs::metadata(place.path()).unwrap().uid(), wanted);
        }
    }

    #[test]
    fn files_are_given_and_what_they_link_to_is_not() {
        if !geteuid().is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let (folder, outside) = (place.path().join("folder"), place.path().join("outside"));
        fs::create_dir_all(folder.join("deep/er")).unwrap();
        fs::write(folder.join("deep/er/file"), "").unwrap();
        fs::write(&outside, "").unwrap();
        symlink(&outside, folder.join("link")).unwrap();
        symlink(place.path(), folder.join("deep/to-folder")).unwrap();
        fs::hard_link(&outside, folder.join("second-name")).unwrap();
        give(&folder, USER).unwrap();
        let owner = |path: &Path| fs::symlink_metadata(path).unwrap().uid();
        for name in ["", "deep", "deep/er", "deep/er/file", "link", "deep/to-folder"] {
            assert_eq!(owner(&folder.join(name)), USER.uid, "{name}");
        }
        for path in [place.path(), &outside] {
            assert_eq!(owner(path), 0, "{}", path.display());
        }
        symlink(place.path(), place.path().join("link")).unwrap();
        assert!(give(&place.path().join("link"), USER).is_ok());
        assert_eq!(owner(place.path()), 0);
    }
}
