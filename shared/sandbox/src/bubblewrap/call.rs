//! The arguments of a command line, and those that do not depend on how bubblewrap is set up.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::image_root::ImageRoot;

/// The file with the names of machines.
const HOSTS: &str = "/etc/hosts";

/// Files of `/proc` about the memory, keys and timers of the machine.
const MASKED_FILES: [&str; 5] =
    ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats"];
/// Folders of `/proc` about its disks and its power supply.
const MASKED_FOLDERS: [&str; 2] = ["/proc/scsi", "/proc/acpi"];
/// The right of other users to read a file.
const OTHERS_READ: u32 = 0o004;
/// Settings of the kernel in `/proc`. The user root may write them without any capability.
const READ_ONLY: [&str; 5] = ["/proc/sys", "/proc/bus", "/proc/irq", "/proc/fs", "/proc/sysrq-trigger"];

/// The network of the commands of a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SlotNetwork<'a> {
    /// One that bubblewrap creates: only processes in the same sandbox.
    Own,
    /// All that the machine reaches.
    Host,
    /// That of the shim, which others share. The file has the names of their machine.
    Shared { hosts: &'a Path },
}

/// A command line of bubblewrap, without the program to execute.
pub(crate) type Call = Vec<OsString>;

/// The program of a command line, and its arguments without the last, `--`, as bubblewrap reads them from a file: the
/// processes of a sandbox can read the command line of bubblewrap, which must not name folders of the host.
pub(crate) fn by_file(call: Call) -> (OsString, Vec<u8>) {
    let mut call = call.into_iter();
    let program = call.next().unwrap_or_default();
    let mut bytes = Vec::with_capacity(4096);
    for argument in call.filter(|argument| argument != "--") {
        bytes.extend_from_slice(argument.as_bytes());
        bytes.push(0);
    }
    (program, bytes)
}

/// A path below another, without a trailing slash.
pub(crate) fn within(root: &Path, path: &Path) -> PathBuf {
    root.join(path).components().collect()
}

pub(super) fn put(call: &mut Call, arguments: &[&str]) {
    call.extend(arguments.iter().map(OsString::from));
}

/// The folders above a path, which other users can enter: those that bubblewrap creates for a mount are its own user's.
pub(super) fn put_parents(call: &mut Call, path: &Path) {
    let mut above: Vec<&Path> = path.ancestors().skip(1).filter(|it| it.parent().is_some()).collect();
    above.reverse();
    for folder in above {
        call.extend(["--dir".into(), folder.into()]);
    }
}

/// Hides what `/proc` shows of the machine, as far as the user of the commands may be able to read it: each mount costs time.
/// Only root can write to the others, and bubblewrap protects only folders that are writable themselves.
pub(super) fn put_proc_masks(call: &mut Call, as_root: bool) {
    let is_shown = |path: &&str| fs::metadata(path).is_ok_and(|of| as_root || of.mode() & OTHERS_READ != 0);
    for path in MASKED_FILES.into_iter().filter(is_shown) {
        put(call, &["--ro-bind", "/dev/null", path]);
    }
    for path in MASKED_FOLDERS.into_iter().filter(is_shown) {
        put(call, &["--tmpfs", path, "--remount-ro", path]);
    }
    for path in READ_ONLY.into_iter().filter(|path| as_root && Path::new(path).exists()) {
        put(call, &["--ro-bind", path, path]);
    }
}

pub(super) fn put_network(call: &mut Call, network: SlotNetwork<'_>) {
    match network {
        SlotNetwork::Own => put(call, &["--unshare-net"]),
        SlotNetwork::Host | SlotNetwork::Shared { .. } => {}
    }
}

/// How the files of an image are mounted.
pub(super) fn bind_option(image: &ImageRoot) -> &'static str {
    if image.writable_bytes.is_some() { "--bind" } else { "--ro-bind" }
}

/// The files of an image, mounted by the option `how`, and of the host only what the kernel says about the machine.
pub(super) fn put_image(call: &mut Call, how: &str, root: &Path, network: SlotNetwork<'_>) {
    call.extend([how.into(), root.into(), "/".into()]);
    put(call, &["--ro-bind", "/sys", "/sys"]);
    match network {
        SlotNetwork::Own => {}
        SlotNetwork::Host => {
            for path in ["/etc/resolv.conf", HOSTS] {
                if let Ok(file) = Path::new(path).canonicalize() {
                    call.extend(["--ro-bind".into(), file.into(), path.into()]);
                }
            }
        }
        // Every image has the file.
        SlotNetwork::Shared { hosts } => call.extend(["--ro-bind".into(), hosts.into(), HOSTS.into()]),
    }
}

/// The names of other machines, among the files of the host.
pub(super) fn put_hosts(call: &mut Call, network: SlotNetwork<'_>) {
    match network {
        SlotNetwork::Host => put_resolver(call),
        SlotNetwork::Shared { hosts } if Path::new(HOSTS).exists() => {
            call.extend(["--ro-bind".into(), hosts.into(), HOSTS.into()]);
        }
        // There is nothing to know, or no place for it.
        SlotNetwork::Own | SlotNetwork::Shared { .. } => {}
    }
}

/// The file with name servers, if a link in `/etc` leads to it.
fn put_resolver(call: &mut Call) {
    let path = Path::new("/etc/resolv.conf");
    if let Ok(target) = path.canonicalize()
        && target != path
    {
        call.extend(["--ro-bind".into(), target.clone().into(), target.into()]);
    }
}

pub(super) fn bind(call: &mut Call, from: &Path, to: &str) {
    call.extend(["--bind".into(), from.into(), to.into()]);
}
