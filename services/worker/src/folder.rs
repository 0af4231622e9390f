//! Folders: one for the worker, one for each workspace, empty for a run or as a similar run left it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::statvfs::statvfs,
};
use tracing::{debug, info};

use crate::bazel;

/// What the name of a folder starts with that is not locked yet.
const NEW: &str = ".new-";
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
            log: root.join("log"),
            own: root.join("own"),
            root,
        };
        folder.create()?;
        Ok(folder)
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
    /// Console output that does not fit on the bus.
    pub(crate) log: PathBuf,
    /// What the preparation needs.
    own: PathBuf,
}

impl RunFolder {
    fn create(&self) -> io::Result<()> {
        fs::create_dir_all(&self.build)?;
        fs::create_dir_all(&self.temporary)
    }

    /// A folder for the preparation's own files, out of the build's way.
    pub(crate) fn own(&self) -> io::Result<&Path> {
        fs::create_dir_all(&self.own)?;
        Ok(&self.own)
    }

    /// What is in the workspace of one run or another, but for the log.
    fn parts(&self) -> [PathBuf; 4] {
        [self.build.clone(), self.temporary.clone(), self.own.clone(), self.root.join(bazel::FOLDER)]
    }

    /// Empties the workspace of a run that goes on. Large trees are removed in the background.
    pub(crate) fn wipe(&self) -> io::Result<()> {
        let trash = self.trash();
        fs::create_dir(&trash)?;
        for (part, number) in self.parts().iter().zip(0..) {
            match fs::rename(part, trash.join(format!("{number}"))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        drop(tokio::task::spawn_blocking(move || remove(&trash)));
        self.create()
    }

    fn trash(&self) -> PathBuf {
        self.root.with_extension(format!("trash-{}", uuid::Uuid::new_v4().simple()))
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
            let kept = self.root.with_extension(format!("kept-{}", model::Millis::now().0));
            let moved = fs::rename(&self.root, &kept);
            info!(path = %kept.display(), ok = moved.is_ok(), "the workspace is kept for looking at");
            return;
        }
        let [build, temporary, own, bazel] = self.parts();
        let unused = is_empty(&build) && is_empty(&temporary);
        if unused && ![&self.log, &own, &bazel].iter().any(|part| part.exists()) {
            return;
        }
        let trash = self.trash();
        match fs::rename(&self.root, &trash) {
            Ok(()) => drop(tokio::task::spawn_blocking(move || remove(&trash))),
            Err(_) => remove(&self.root),
        }
    }
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        debug!(path = %folder.display(), %error, "a workspace was not removed whole");
    }
}
