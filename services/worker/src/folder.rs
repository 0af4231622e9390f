//! Folders: one for the worker and one for each workspace, which is empty for a run or holds the files
//! of a similar run.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use disk::{REMOVING, remove_tree};
use nix::{
    fcntl::{Flock, FlockArg, OFlag},
    sys::statvfs::statvfs,
};
use parking_lot::Mutex;
use tracing::{debug, info, warn};

/// Prefix of the name of a folder that is not locked yet.
const NEW: &str = ".new-";
/// Name of the folder with the events of Bazel, which its wrapper writes too.
const TOOL_EVENTS: &str = "tool-events";
/// Name of the folder with Bazel's outputs.
const BAZEL: &str = "bazel";
/// Name of the folder with the files of services.
pub(crate) const SERVICES: &str = "services";
/// Name of the folder on which the secrets of a build are mounted in its sandbox; empty on the machine.
const SECRETS: &str = "secrets";
/// Rights without which the owner of a folder cannot use it.
const OWNER: u32 = 0o700;
/// Bytes below which a disk counts as full: a command that runs out of space rarely leaves zero bytes free.
const FULL: u64 = 256 << 10;

/// Number of folders that a workspace tries: those before cannot be emptied.
const TRIES: u32 = 100;

/// The worker's folder, locked as long as the worker lives.
pub(crate) struct WorkerFolder {
    path: PathBuf,
    /// The folders of workspaces whose first ones could not be emptied.
    replaced: Mutex<BTreeMap<u16, u32>>,
    _lock: Flock<fs::File>,
}

impl WorkerFolder {
    /// Makes the folder `root/name` and removes the folders of workers that died.
    pub(crate) fn create(root: &Path, name: &str) -> io::Result<Self> {
        clear_dead(root)?;
        // Locked before it gets its name: another worker that starts now must not treat it as a dead worker's folder.
        let new = root.join(format!("{NEW}{name}"));
        fs::create_dir_all(&new)?;
        // Builds of all tenants write below it, also set-user-ID programs of the worker's user.
        fs::set_permissions(&new, fs::Permissions::from_mode(OWNER))?;
        let lock = disk::lock_file(&new.join("lock"))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, error)| io::Error::from(error))?;
        let path = root.join(name);
        fs::rename(&new, &path)?;
        Ok(Self { path, replaced: Mutex::default(), _lock: lock })
    }

    /// The folder that comes first in the `PATH` of builds.
    pub(crate) fn programs(&self) -> PathBuf {
        self.path.join("bin")
    }

    /// The folder of workspace `number`.
    fn root(&self, number: u16) -> PathBuf {
        let replaced = self.replaced.lock().get(&number).copied().unwrap_or_default();
        self.path.join(if replaced == 0 { number.to_string() } else { format!("{number}-{replaced}") })
    }

    /// Creates an empty folder for a run in workspace `number`. A folder that cannot be emptied is never used again: it may
    /// contain files of another group.
    pub(crate) fn run_folder(&self, number: u16) -> io::Result<RunFolder> {
        // A build without a sandbox may have closed it.
        open_for_owner(&self.path)?;
        let mut was_moved = false;
        for _ in 0..TRIES {
            let folder = RunFolder::at(self.root(number));
            match folder.create_empty() {
                Ok(()) => return Ok(folder),
                // Another error would be the same in the next one.
                Err(error) if !is_of_content(&error) || was_moved => return Err(error),
                Err(error) => {
                    let path = folder.root.display();
                    warn!(%path, %error, "a workspace cannot be emptied and is replaced; remove its folder by hand");
                    if folder.root.exists() {
                        *self.replaced.lock().entry(number).or_default() += 1;
                    } else {
                        // Its removal began, so that its name is free.
                        was_moved = true;
                    }
                }
            }
        }
        Err(io::Error::other(format!("{TRIES} folders of workspace {number} cannot be emptied")))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the folder of workspace `number`; no build may use it now.
    pub(crate) fn renew(&self, number: u16) {
        RunFolder::at(self.root(number)).discard();
    }

    /// Removes the files of the build in workspace `number`, although it may still run: the space is needed now. If one
    /// folder cannot be moved or made again, the others are still emptied.
    pub(crate) fn empty(&self, number: u16) -> io::Result<()> {
        let root = self.root(number);
        let mut emptied = Ok(());
        for folder in ["build", "tmp", "home"].map(|name| root.join(name)) {
            // No folder is created for it first: a full disk may have no space for one.
            let trash = trash_of(&root);
            let moved = match fs::rename(&folder, &trash) {
                Ok(()) => {
                    remove_in_background(trash);
                    fs::create_dir_all(&folder)
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(&folder),
                Err(error) => Err(error),
            };
            emptied = emptied.and(moved);
        }
        emptied
    }

    pub(crate) fn remove(&self) {
        if let Err(error) = remove_tree(&self.path) {
            debug!(%error, "cannot remove the worker's folder; the next worker will");
        }
    }
}

/// Removes what dead workers left, in the background: it may be much.
fn clear_dead(root: &Path) -> io::Result<()> {
    let mut dead = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(NEW) {
            continue;
        }
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(REMOVING) {
            // Its worker died during the removal. If it lives, both remove it.
            dead.push((path, None));
            continue;
        }
        // Without a lock it is not the folder of a worker.
        let Ok(file) = open_lock(&path.join("lock")) else { continue };
        if let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            dead.push((path, Some(lock)));
        }
    }
    // The runtime would wait for it at its end, and what is left is removed by the next worker.
    std::thread::Builder::new().name("clear-dead".to_owned()).spawn(move || {
        for (path, lock) in dead {
            info!(path = %path.display(), "removing the folder of a dead worker");
            remove(&path);
            drop(lock);
        }
    })?;
    Ok(())
}

/// Opens a lock, which must be a file: a build may have put something else there.
fn open_lock(path: &Path) -> io::Result<fs::File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Whether what is in a folder is the reason that it cannot be emptied.
fn is_of_content(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::ResourceBusy
            | io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::Other
    )
}

/// Gives the owner of a folder all rights in it.
fn open_for_owner(folder: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(folder)?;
    if metadata.is_dir() && metadata.mode() & OWNER != OWNER {
        fs::set_permissions(folder, fs::Permissions::from_mode(metadata.mode() & 0o7777 | OWNER))?;
    }
    Ok(())
}

/// The folders of one run.
pub(crate) struct RunFolder {
    root: PathBuf,
    /// The working directory of the command.
    pub(crate) build: PathBuf,
    /// `TMPDIR` of the command.
    pub(crate) temporary: PathBuf,
    /// `HOME` of the command.
    pub(crate) home: PathBuf,
    /// Events that the calls of Bazel wrote for the worker; without such a call it is empty, or missing.
    pub(crate) tool_events: PathBuf,
    /// Files of the services of the build; without any it is missing.
    pub(crate) services: PathBuf,
    /// Files of the preparation.
    own: PathBuf,
}

impl RunFolder {
    fn at(root: PathBuf) -> Self {
        Self {
            build: root.join("build"),
            temporary: root.join("tmp"),
            home: root.join("home"),
            own: root.join("own"),
            tool_events: root.join(TOOL_EVENTS),
            services: root.join(SERVICES),
            root,
        }
    }

    /// Creates the folders, without anything of an earlier run.
    fn create_empty(&self) -> io::Result<()> {
        if self.root.exists() {
            open_for_owner(&self.root)?;
        }
        self.create()?;
        if self.is_as_new() {
            return Ok(());
        }
        remove_tree(&self.root)?;
        self.create()?;
        if self.is_as_new() { Ok(()) } else { Err(io::Error::other("it has files of an earlier build")) }
    }

    fn create(&self) -> io::Result<()> {
        fs::create_dir_all(&self.build)?;
        fs::create_dir_all(&self.temporary)?;
        fs::create_dir_all(&self.home)
    }

    /// The folders that a build may write to, each of which exists then: also those of Bazel.
    pub(crate) fn writable(&self) -> io::Result<Vec<PathBuf>> {
        let bazel = self.root.join(BAZEL);
        for folder in [&bazel, &self.tool_events] {
            fs::create_dir_all(folder)?;
        }
        let folders = [&self.build, &self.temporary, &self.home, &self.tool_events, &bazel];
        Ok(folders.into_iter().cloned().collect())
    }

    /// The folder that contains all others.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A folder for the preparation's files, which the build does not use.
    pub(crate) fn own(&self) -> io::Result<&Path> {
        fs::create_dir_all(&self.own)?;
        Ok(&self.own)
    }

    /// The folder in which the command finds its secrets.
    pub(crate) fn secrets(&self) -> PathBuf {
        self.root.join(SECRETS)
    }

    /// Makes the folder on which secrets are mounted.
    pub(crate) fn make_secrets(&self) -> io::Result<()> {
        fs::create_dir_all(self.secrets())
    }

    /// The folder with what the services of the build wrote, after their end.
    pub(crate) fn service_logs(&self) -> PathBuf {
        self.services.join("kept.logs")
    }

    /// Removes the files of services, which are dead. Large trees are removed in the background.
    pub(crate) fn remove_services(&self) {
        let trash = trash_of(&self.root);
        match fs::rename(&self.services, &trash) {
            Ok(()) => remove_in_background(trash),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                warn!(path = %self.services.display(), %error, "cannot remove the files of services");
            }
        }
    }

    /// Empties the workspace of a run that continues. Large trees are removed in the background.
    pub(crate) fn wipe(&self) -> io::Result<()> {
        let trash = trash_of(&self.root);
        fs::rename(&self.root, &trash)?;
        self.create()?;
        remove_in_background(trash);
        Ok(())
    }

    /// Whether the folder contains only what a run starts with. A build may also write outside its build folder.
    fn is_as_new(&self) -> bool {
        let known = |path: &Path| {
            let (bazel, secrets) = (self.root.join(BAZEL), self.secrets());
            [&self.build, &self.temporary, &self.home, &self.own, &self.tool_events, &bazel, &secrets]
                .iter()
                .any(|known| *known == path)
        };
        is_usable(&self.root)
            && fs::read_dir(&self.root).is_ok_and(|mut entries| {
                entries.all(|entry| {
                    entry.is_ok_and(|entry| {
                        let path = entry.path();
                        known(&path) && is_usable(&path) && is_empty(&path)
                    })
                })
            })
    }

    /// Whether the disk under the workspace is practically full.
    pub(crate) fn disk_is_full(&self) -> bool {
        statvfs(&self.build)
            // A file system without an inode table reports zero inodes.
            .is_ok_and(|disk| {
                disk.blocks_available() * disk.fragment_size() < FULL
                    || (disk.files() > 0 && disk.files_available() == 0)
            })
    }

    /// Clears the workspace for the next run. Large trees are removed in the background.
    pub(crate) fn clear(self, keep: bool) {
        if keep {
            let kept = self.root.with_extension(format!("kept-{}", model::Millis::of_this_machine().0));
            let moved = fs::rename(&self.root, &kept);
            info!(path = %kept.display(), ok = moved.is_ok(), "keeping the workspace for inspection");
            return;
        }
        if !self.is_as_new() {
            self.discard();
        }
    }

    fn discard(&self) {
        let trash = trash_of(&self.root);
        match fs::rename(&self.root, &trash) {
            Ok(()) => remove_in_background(trash),
            Err(_) => remove(&self.root),
        }
    }
}

/// Whether this is a folder, not a link to one, that its owner may use.
fn is_usable(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|it| it.is_dir() && it.mode() & OWNER == OWNER)
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// New path to which a folder of the workspace at `root` is moved before it is removed.
fn trash_of(root: &Path) -> PathBuf {
    root.with_extension(format!("trash-{}", uuid::Uuid::new_v4().simple()))
}

fn remove(folder: &Path) {
    if let Err(error) = remove_tree(folder) {
        debug!(path = %folder.display(), %error, "cannot remove the whole workspace");
    }
}

fn remove_in_background(folder: PathBuf) {
    // The removal needs no attention: it logs its error, and the next worker removes what is left.
    drop(tokio::task::spawn_blocking(move || remove(&folder)));
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, os::unix};

    use super::*;

    fn names(folder: &Path) -> Vec<OsString> {
        let mut names: Vec<OsString> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn s11_other_users_of_the_machine_do_not_reach_what_builds_write() {
        let data = tempfile::tempdir().unwrap();
        let folder = WorkerFolder::create(data.path(), "worker").unwrap();
        assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o700);
    }

    /// Whether the run after one that did `dirt` finds an empty workspace in the same folder.
    fn after(dirt: impl Fn(&RunFolder)) -> bool {
        let data = tempfile::tempdir().unwrap();
        let worker = WorkerFolder::create(data.path(), "w").unwrap();
        let first = worker.run_folder(0).unwrap();
        // Kept open so that its inode number is not reused.
        let held = fs::File::open(&first.root).unwrap();
        dirt(&first);
        first.clear(false);
        let next = worker.run_folder(0).unwrap();
        assert_eq!(names(&next.root), ["build", "home", "tmp"]);
        for folder in [&next.root, &next.build, &next.temporary, &next.home] {
            assert!(is_usable(folder), "{}", folder.display());
        }
        assert!(is_empty(&next.build) && is_empty(&next.temporary));
        fs::metadata(&next.root).unwrap().ino() == held.metadata().unwrap().ino()
    }

    #[tokio::test]
    async fn a_run_finds_nothing_of_the_one_before() {
        assert!(after(|_| {}));
        let dirty: [fn(&RunFolder); 8] = [
            |it| fs::write(it.build.join("x"), "").unwrap(),
            |it| fs::write(it.home.join("x"), "").unwrap(),
            |it| fs::write(it.temporary.join("x"), "").unwrap(),
            |it| fs::write(it.own().unwrap().join("x"), "").unwrap(),
            |it| fs::write(it.root.join("x"), "").unwrap(),
            |it| fs::create_dir_all(it.root.join("bazel/x")).unwrap(),
            |it| {
                fs::remove_dir(&it.build).unwrap();
                unix::fs::symlink(it.temporary.clone(), &it.build).unwrap();
            },
            |it| {
                let unwritable = unix::fs::PermissionsExt::from_mode(0o500);
                fs::set_permissions(&it.temporary, unwritable).unwrap();
            },
        ];
        for (number, dirt) in dirty.into_iter().enumerate() {
            assert!(!after(dirt), "{number}");
        }
    }

    #[tokio::test]
    async fn a_workspace_that_cannot_be_emptied_is_replaced() {
        let data = tempfile::tempdir().unwrap();
        let worker = WorkerFolder::create(data.path(), "w").unwrap();
        let first = worker.run_folder(0).unwrap();
        fs::write(first.build.join("secret"), "of another group").unwrap();
        // Even root cannot remove a mount.
        let held = first.build.join("held");
        fs::create_dir(&held).unwrap();
        let none: Option<&str> = None;
        if nix::mount::mount(Some("tmpfs"), &held, Some("tmpfs"), nix::mount::MsFlags::empty(), none).is_err()
        {
            return;
        }
        let next = worker.run_folder(0);
        // It may have been moved.
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = data.path().to_str().unwrap();
        for place in mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|it| it.starts_with(own))
        {
            nix::mount::umount(place).unwrap();
        }
        let next = next.unwrap();
        assert!(next.is_as_new(), "{}", next.root.display());
        assert!(worker.run_folder(1).unwrap().is_as_new());
    }

    #[tokio::test]
    async fn a_workspace_that_a_build_closed_is_opened_again() {
        let data = tempfile::tempdir().unwrap();
        let worker = WorkerFolder::create(data.path(), "w").unwrap();
        let first = worker.run_folder(0).unwrap();
        fs::write(first.build.join("secret"), "x").unwrap();
        for folder in [&first.build, &first.root, &worker.path().to_owned()] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o500)).unwrap();
        }
        first.clear(false);
        let next = worker.run_folder(0).unwrap();
        assert!(next.is_as_new());
    }

    #[test]
    fn what_dead_workers_left_does_not_hold_up_the_start() {
        let data = tempfile::tempdir().unwrap();
        let dead = WorkerFolder::create(data.path(), "dead").unwrap();
        let path = dead.path().to_owned();
        drop(dead);
        nix::unistd::mkfifo(&data.path().join("fifo-lock"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let odd = data.path().join("odd");
        fs::create_dir(&odd).unwrap();
        fs::rename(data.path().join("fifo-lock"), odd.join("lock")).unwrap();
        let _next = WorkerFolder::create(data.path(), "next").unwrap();
        for _ in 0..1000 {
            if !path.exists() {
                break;
            }
            std::thread::yield_now();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(!path.exists() && odd.exists());
    }

    #[tokio::test]
    async fn a_wiped_workspace_has_nothing_of_its_run() {
        let data = tempfile::tempdir().unwrap();
        let folder = WorkerFolder::create(data.path(), "w").unwrap().run_folder(0).unwrap();
        folder.wipe().unwrap();
        assert_eq!(names(&folder.root), ["build", "home", "tmp"]);
        for path in [folder.build.join("x"), folder.temporary.join("x"), folder.root.join("x")] {
            fs::write(path, "").unwrap();
        }
        folder.wipe().unwrap();
        assert_eq!(names(&folder.root), ["build", "home", "tmp"]);
        assert!(is_empty(&folder.build) && is_empty(&folder.temporary));
    }
}
