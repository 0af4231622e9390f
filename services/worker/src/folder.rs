//! Folders: one for the worker, one for each workspace, empty for a run or as a similar run left it.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::statvfs::statvfs,
};
use tracing::{debug, info};

/// What the name of a folder starts with that is not locked yet.
const NEW: &str = ".new-";
/// The file of a run's long console output.
const LOG: &str = "log";
/// Bytes below which a disk counts as full: a command that hit the end rarely leaves nothing at all.
const FULL: u64 = 256 << 10;

/// The worker's folder, locked while it lives.
pub(crate) struct WorkerFolder {
    path: PathBuf,
    _lock: Flock<fs::File>,
}

impl WorkerFolder {
    /// Makes the folder `root/name` and clears those of workers that died.
    pub(crate) fn create(root: &Path, name: &str) -> io::Result<Self> {
        clear_dead(root)?;
        // Locked before it has its name: another worker that starts now must not take it for a dead one's.
        let new = root.join(format!("{NEW}{name}"));
        fs::create_dir_all(&new)?;
        let lock = fs::File::create(new.join("lock"))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, error)| io::Error::from(error))?;
        let path = root.join(name);
        fs::rename(&new, &path)?;
        Ok(Self { path, _lock: lock })
    }

    /// A folder that stands first in the `PATH` of builds.
    pub(crate) fn programs(&self) -> PathBuf {
        self.path.join("bin")
    }

    /// An empty folder for a run in workspace `number`.
    pub(crate) fn run_folder(&self, number: u16) -> io::Result<RunFolder> {
        let root = self.path.join(number.to_string());
        let folder = RunFolder {
            build: root.join("build"),
            temporary: root.join("tmp"),
            home: root.join("home"),
            log: root.join(LOG),
            own: root.join("own"),
            root,
        };
        folder.create()?;
        Ok(folder)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what the build in workspace `number` has, though it may still run: its room is needed now. A folder that cannot be
    /// moved away or made again does not keep the others.
    pub(crate) fn empty(&self, number: u16) -> io::Result<()> {
        let root = self.path.join(number.to_string());
        let mut emptied = Ok(());
        for folder in ["build", "tmp", "home"].map(|name| root.join(name)) {
            // No folder is made for it first: a full disk may not have room for one.
            let trash = trash_of(&root);
            let moved = match fs::rename(&folder, &trash) {
                Ok(()) => {
                    drop(tokio::task::spawn_blocking(move || remove(&trash)));
                    fs::create_dir_all(&folder)
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(&folder),
                Err(error) => Err(error),
            };
            emptied = emptied.and(moved);
        }
        emptied
    }

    /// Removes everything.
    pub(crate) fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            debug!(%error, "the worker's folder was not removed; the next worker does");
        }
    }
}

fn clear_dead(root: &Path) -> io::Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(NEW) {
            continue;
        }
        let path = entry.path();
        let Ok(file) = fs::File::open(path.join("lock")) else { continue };
        if Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok() {
            info!(path = %path.display(), "removing the folder of a worker that died");
            let _ = fs::remove_dir_all(&path);
        }
    }
    Ok(())
}

/// The folders of one run.
pub(crate) struct RunFolder {
    root: PathBuf,
    /// Where the command runs.
    pub(crate) build: PathBuf,
    /// Its `TMPDIR`.
    pub(crate) temporary: PathBuf,
    /// Its `HOME`.
    pub(crate) home: PathBuf,
    /// Console output that does not fit on the bus.
    pub(crate) log: PathBuf,
    /// What the preparation needs.
    own: PathBuf,
}

impl RunFolder {
    fn create(&self) -> io::Result<()> {
        fs::create_dir_all(&self.build)?;
        fs::create_dir_all(&self.temporary)?;
        fs::create_dir_all(&self.home)
    }

    /// A folder for the preparation's own files, out of the build's way.
    pub(crate) fn own(&self) -> io::Result<&Path> {
        fs::create_dir_all(&self.own)?;
        Ok(&self.own)
    }

    /// Empties the workspace of a run that goes on, but for its log. Large trees are removed in the background.
    pub(crate) fn wipe(&self) -> io::Result<()> {
        let trash = trash_of(&self.root);
        fs::rename(&self.root, &trash)?;
        self.create()?;
        match fs::rename(trash.join(LOG), &self.log) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        drop(tokio::task::spawn_blocking(move || remove(&trash)));
        Ok(())
    }

    /// Whether there is only what a run begins with. A build may also write beside its own folder.
    fn is_as_new(&self) -> bool {
        let known =
            |path: &Path| [&self.build, &self.temporary, &self.home].iter().any(|known| *known == path);
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

    /// Leaves all to the next run but what is of this one alone.
    pub(crate) fn keep(&self) {
        let _ = fs::remove_file(&self.log);
    }

    /// Whether the disk under the workspace has no room left to speak of.
    pub(crate) fn disk_is_full(&self) -> bool {
        statvfs(&self.build)
            // A file system without a table of inodes says that it has none at all.
            .is_ok_and(|disk| {
                disk.blocks_available() * disk.fragment_size() < FULL
                    || (disk.files() > 0 && disk.files_available() == 0)
            })
    }

    /// Leaves nothing to the next run. Large trees are removed in the background.
    pub(crate) fn clear(self, keep: bool) {
        if keep {
            let kept = self.root.with_extension(format!("kept-{}", model::Millis::of_this_machine().0));
            let moved = fs::rename(&self.root, &kept);
            info!(path = %kept.display(), ok = moved.is_ok(), "the workspace is kept for looking at");
            return;
        }
        if self.is_as_new() {
            return;
        }
        let trash = trash_of(&self.root);
        match fs::rename(&self.root, &trash) {
            Ok(()) => drop(tokio::task::spawn_blocking(move || remove(&trash))),
            Err(_) => remove(&self.root),
        }
    }
}

/// A folder, and no link to one, that its owner may use.
fn is_usable(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|it| it.is_dir() && it.mode() & 0o700 == 0o700)
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// Where a folder of the workspace with this `root` lies until it is removed.
fn trash_of(root: &Path) -> PathBuf {
    root.with_extension(format!("trash-{}", uuid::Uuid::new_v4().simple()))
}

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        debug!(path = %folder.display(), %error, "a workspace was not removed whole");
    }
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

    /// What a run finds after one that did `dirt`, and whether it is the same folder.
    fn after(dirt: impl Fn(&RunFolder)) -> bool {
        let data = tempfile::tempdir().unwrap();
        let worker = WorkerFolder::create(data.path(), "w").unwrap();
        let first = worker.run_folder(0).unwrap();
        // Held, or the number might be given to the next one.
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
        let dirty: [fn(&RunFolder); 9] = [
            |it| fs::write(it.build.join("x"), "").unwrap(),
            |it| fs::write(it.home.join("x"), "").unwrap(),
            |it| fs::write(it.temporary.join("x"), "").unwrap(),
            |it| fs::write(&it.log, "").unwrap(),
            |it| fs::create_dir(&it.own).unwrap(),
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
    async fn a_wiped_workspace_has_the_log_of_its_run_and_nothing_else() {
        let data = tempfile::tempdir().unwrap();
        let folder = WorkerFolder::create(data.path(), "w").unwrap().run_folder(0).unwrap();
        folder.wipe().unwrap();
        assert_eq!(names(&folder.root), ["build", "home", "tmp"]);
        fs::write(&folder.log, "log").unwrap();
        for path in [folder.build.join("x"), folder.temporary.join("x"), folder.root.join("x")] {
            fs::write(path, "").unwrap();
        }
        folder.wipe().unwrap();
        assert_eq!(names(&folder.root), ["build", "home", "log", "tmp"]);
        assert!(is_empty(&folder.build) && is_empty(&folder.temporary));
        assert_eq!(fs::read_to_string(&folder.log).unwrap(), "log");
    }
}
