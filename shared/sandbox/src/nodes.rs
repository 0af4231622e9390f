//! Device nodes for sandboxes of root: the owner of the machine's nodes could change their rights for everyone.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::geteuid;

/// Names, and numbers by which Linux knows them.
pub(crate) const NODES: [(&str, u64, u64); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
/// A user that no build or action is, and no person.
const OWNER: u32 = 0xFFFF_FFF0;

/// Makes nodes in `folder` that belong to no command. `None` if this user, or the file system, has none: commands then use
/// those of the machine.
///
/// # Errors
///
/// Fails if the folder cannot be written to.
pub fn make_nodes(folder: PathBuf) -> io::Result<Option<PathBuf>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
    for (name, major, minor) in NODES {
        if let Err(error) = make(&folder.join(name), makedev(major, minor)) {
            tracing::debug!(name, %error, "cannot make a device node for sandboxes");
            return Ok(None);
        }
    }
    // A file system may be mounted without devices.
    Ok(File::options().write(true).open(folder.join("null")).is_ok().then_some(folder))
}

fn make(path: &Path, number: u64) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    mknod(path, SFlag::S_IFCHR, Mode::empty(), number)?;
    chown(path, Some(OWNER), Some(OWNER))?;
    fs::set_permissions(path, Permissions::from_mode(0o666))
}
