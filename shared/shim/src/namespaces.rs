//! Namespaces for users who may not create them otherwise.

use std::fs;
use std::io;

use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::unistd::{getgid, getuid};

use crate::options::User;
use crate::server;

/// Creates these namespaces in a new user namespace, which keeps the user and group ids.
pub(crate) fn unshare_as_own_user(namespaces: CloneFlags) -> io::Result<()> {
    unshare_as(namespaces, User { uid: getuid().as_raw(), gid: getgid().as_raw() })
}

/// Creates these namespaces in a new user namespace, in which this process has the ids of `inside`. It has no others.
fn unshare_as(namespaces: CloneFlags, inside: User) -> io::Result<()> {
    let (uid, gid) = (getuid(), getgid());
    unshare(namespaces | CloneFlags::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{} {uid} 1", inside.uid))?;
    fs::write("/proc/self/gid_map", format!("{} {gid} 1", inside.gid))
}

/// Lets this process and all that it starts see themselves as `inside`, without any right of the namespace's creator. Outside
/// they stay what they are.
pub(crate) fn appear_as(inside: User) -> io::Result<()> {
    // Only then can a process write its own maps.
    prctl::set_dumpable(true)?;
    unshare_as(CloneFlags::empty(), inside).map_err(|error| {
        let allow = "allow user namespaces for it (sysctl user.max_user_namespaces, \
                     kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)";
        let uid = getuid();
        io::Error::new(
            error.kind(),
            format!("user {uid} cannot appear as the user of an image: {error}; {allow}"),
        )
    })?;
    server::drop_rights()?;
    prctl::set_dumpable(false)?;
    Ok(())
}
