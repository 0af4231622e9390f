//! Namespaces for users who may not create them otherwise.

use std::fs;
use std::io;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getgid, getuid};

/// Creates these namespaces in a new user namespace, which keeps the user and group ids.
pub(crate) fn unshare_as_own_user(namespaces: CloneFlags) -> io::Result<()> {
    let (uid, gid) = (getuid(), getgid());
    unshare(namespaces | CloneFlags::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}
