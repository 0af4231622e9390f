//! Device nodes for sandboxes of root: the owner of the machine's nodes could change their rights for everyone.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::geteuid;

/// Names, and numbers by which Linux knows them.
pub(crate) const NODES: [(&str, u64, u64); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
/// User id that no process has.
const OWNER: u32 = 0xFFFF_FFF0;
const MODE: u32 = 0o666;

/// Outside of the data folder: a program that copies or searches that folder would read the nodes without end.
const FOLDER: &str = "/dev/forebay";

/// Makes the nodes and returns their folder. `None` if this user or machine cannot: commands then use the nodes of the machine.
pub fn make_nodes() -> Option<PathBuf> {
    if !geteuid().is_root() {
        return None;
    }
    let folder = PathBuf::from(FOLDER);
    let made = fs::create_dir_all(&folder)
        .and_then(|()| fs::set_permissions(&folder, Permissions::from_mode(0o755)))
        .and_then(|()| NODES.iter().try_for_each(|node| make(&folder, *node)))
        // A file system may be mounted without devices.
        .and_then(|()| File::options().write(true).open(folder.join("null")));
    made.inspect_err(|error| tracing::debug!(FOLDER, %error, "cannot make device nodes for sandboxes"))
        .ok()?;
    Some(folder)
}

/// Several processes may make the same node.
fn make(folder: &Path, (name, major, minor): (&str, u64, u64)) -> io::Result<()> {
    let (path, new) = (folder.join(name), folder.join(format!("{name}.{}", std::process::id())));
    let number = makedev(major, minor);
    let is_made = fs::symlink_metadata(&path).is_ok_and(|it| {
        it.rdev() == number && it.uid() == OWNER && it.mode() == (SFlag::S_IFCHR.bits() | MODE)
    });
    if is_made {
        return Ok(());
    }
    // Left by a process of the same number; if it cannot be removed, the next call fails.
    let _ = fs::remove_file(&new);
    mknod(&new, SFlag::S_IFCHR, Mode::empty(), number)?;
    chown(&new, Some(OWNER), Some(OWNER))?;
    fs::set_permissions(&new, Permissions::from_mode(MODE))?;
    fs::rename(new, path)
}
