//! Builds the command lines of bubblewrap.

mod call;
mod program;
mod setup;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use shim::User;

pub(crate) use self::call::{Call, SlotNetwork, by_file, within};
use self::call::{bind, bind_option, put, put_hosts, put_image, put_network, put_parents, put_proc_masks};
pub(crate) use self::program::advice;
pub use self::setup::Bubblewrap;
use self::setup::is_covered;
use crate::error::SandboxError;
use crate::image_root::ImageRoot;
use crate::loader::put_libraries;
use crate::nodes::NODES;
use crate::own_parts::OwnParts;

/// The folder that contains the input root, as commands see it.
pub const INSIDE: &str = "/forebay";
/// The input root, for a command in its own sandbox.
pub(crate) const INSIDE_ROOT: &str = "/forebay/root";
/// The private folders that are emptied between the commands of a kept sandbox.
pub(crate) const PRIVATE: [&str; 3] = ["/tmp", "/dev/shm", "/dev/mqueue"];
/// The largest size of a file system in memory that bubblewrap accepts.
const SIZE_MOST: u64 = i64::MAX.unsigned_abs();

/// What sandboxed commands reach over the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// All that the machine reaches.
    Host,
    /// Only processes in the same sandbox.
    Loopback,
    /// Nothing, if system calls are filtered; else as `Loopback`.
    None,
}

/// One command and what its own sandbox contains.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alone<'a> {
    /// The input root and the working directory in it.
    pub(crate) root: &'a Path,
    pub(crate) cwd: &'a Path,
    /// Whether the input root is `/`, and the command runs as root.
    pub(crate) as_root: bool,
    /// The files that it sees instead of those of the host.
    pub(crate) image: Option<&'a ImageRoot>,
    /// Nodes of the host's devices that it can use.
    pub(crate) devices: &'a [PathBuf],
    pub(crate) network: SlotNetwork<'a>,
}

impl<'a> Alone<'a> {
    /// A command with an empty working directory and nothing of the host.
    pub(crate) fn in_root(root: &'a Path) -> Self {
        Self {
            root,
            cwd: Path::new(""),
            as_root: false,
            image: None,
            devices: &[],
            network: SlotNetwork::Own,
        }
    }
}

impl Bubblewrap {
    /// The sandbox of a slot, with its folder at [`INSIDE`].
    pub(crate) fn kept(&self, work: &Path, network: SlotNetwork<'_>) -> Result<Call, SandboxError> {
        let mut call = self.begin_kept(network)?;
        self.put_system(&mut call);
        put_hosts(&mut call, network);
        self.put_devices(&mut call, true, true);
        self.put_shown(&mut call, is_covered);
        put(&mut call, &["--mqueue", "/dev/mqueue"]);
        bind(&mut call, work, INSIDE);
        self.put_hidden_read_only(&mut call);
        put(&mut call, &["--remount-ro", "/", "--chdir", "/", "--"]);
        Ok(call)
    }

    /// The same with the files of an image instead of those of the host.
    pub(crate) fn kept_in_image(
        &self,
        image: &ImageRoot,
        work: &Path,
        network: SlotNetwork<'_>,
    ) -> Result<Call, SandboxError> {
        let mut call = self.begin_kept(network)?;
        put_image(&mut call, bind_option(image), &image.at, network);
        self.put_devices(&mut call, true, true);
        put(&mut call, &["--mqueue", "/dev/mqueue"]);
        bind(&mut call, work, INSIDE);
        let start = put_libraries(&mut call);
        put(&mut call, &["--chdir", "/", "--"]);
        call.extend(start);
        Ok(call)
    }

    fn begin_kept(&self, network: SlotNetwork<'_>) -> Result<Call, SandboxError> {
        let mut call = self.begin(network)?;
        // The shim needs these two to switch to the commands' user, and drops them then.
        put(&mut call, &["--as-pid-1", "--cap-drop", "ALL", "--cap-add", "CAP_SETUID"]);
        put(&mut call, &["--cap-add", "CAP_SETGID"]);
        Ok(call)
    }

    /// The same with at most the smallest of these sizes in memory, in bytes.
    pub(crate) fn with_room(&self, most: [Option<u64>; 2]) -> Cow<'_, Self> {
        let bytes = most.into_iter().flatten().min();
        match bytes.filter(|bytes| self.tmp_bytes_max.is_none_or(|max| max > *bytes)) {
            Some(bytes) => Cow::Owned(Self { tmp_bytes_max: Some(bytes), ..self.clone() }),
            None => Cow::Borrowed(self),
        }
    }

    /// The sandbox of one command. Its input root is at [`INSIDE_ROOT`] or is `/`.
    pub(crate) fn alone(&self, alone: Alone<'_>) -> Result<Call, SandboxError> {
        let mut call = self.begin(alone.network)?;
        self.put_filter(&mut call);
        put(&mut call, &["--new-session", "--unshare-user"]);
        put(&mut call, &["--json-status-fd", &shim::STATUS_DESCRIPTOR.to_string()]);
        let inside = if alone.as_root {
            put(&mut call, &["--uid", "0", "--gid", "0"]);
            bind(&mut call, alone.root, "/");
            // The input root's own `/tmp`, if it exists, because it may contain inputs.
            self.put_devices(&mut call, fs::symlink_metadata(alone.root.join("tmp")).is_err(), false);
            "/"
        } else if let Some(image) = alone.image {
            put_image(&mut call, bind_option(image), &image.at, alone.network);
            if let Some(User { uid, gid }) = image.user {
                put(&mut call, &["--uid", &uid.to_string(), "--gid", &gid.to_string()]);
            }
            self.put_devices(&mut call, true, false);
            put(&mut call, &["--tmpfs", INSIDE]);
            bind(&mut call, alone.root, INSIDE_ROOT);
            put(&mut call, &["--remount-ro", INSIDE]);
            INSIDE_ROOT
        } else {
            self.put_system(&mut call);
            put_hosts(&mut call, alone.network);
            self.put_devices(&mut call, true, false);
            self.put_shown(&mut call, is_covered);
            bind(&mut call, alone.root, INSIDE_ROOT);
            self.put_hidden_read_only(&mut call);
            INSIDE_ROOT
        };
        for node in alone.devices {
            call.extend(["--dev-bind".into(), node.into(), node.into()]);
        }
        // Each separately: mounts below them stay as they are.
        put(&mut call, &["--remount-ro", "/dev"]);
        if !alone.as_root && alone.image.is_none() {
            put(&mut call, &["--remount-ro", "/"]);
        }
        call.push("--chdir".into());
        call.push(within(Path::new(inside), alone.cwd).into());
        put(&mut call, &["--"]);
        Ok(call)
    }

    /// The sandbox of the builds of a workspace: `folder` is readable at its own path, and `places` in it are writable.
    /// Each of them is a mount, which cannot be moved or replaced.
    pub(crate) fn workspace(
        &self,
        folder: &Path,
        places: &[PathBuf],
        programs: &Path,
        network: SlotNetwork<'_>,
        own: OwnParts<'_>,
    ) -> Result<Call, SandboxError> {
        // Builds may run as the user of the worker.
        let all = self.clone().hiding_private();
        all.workspace_with_its_hidden(folder, places, programs, network, own)
    }

    fn workspace_with_its_hidden(
        &self,
        folder: &Path,
        places: &[PathBuf],
        programs: &Path,
        network: SlotNetwork<'_>,
        OwnParts { user, image, secrets, network: _ }: OwnParts<'_>,
    ) -> Result<Call, SandboxError> {
        let mut call = vec![self.find()?.into_os_string()];
        // No namespace of control groups: Java looks for its group by the path outside, and fails without it.
        put(&mut call, &["--unshare-pid", "--unshare-ipc", "--die-with-parent"]);
        put(&mut call, &["--as-pid-1", "--cap-drop", "ALL"]);
        if user.is_some() {
            // The shim needs these two to switch to the user, and drops them then.
            put(&mut call, &["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]);
        }
        if let Some(image) = image {
            // Writable until the places are mounted: the image has no folders for them.
            put_image(&mut call, "--bind", &image.at, network);
        } else {
            self.put_system(&mut call);
            put_hosts(&mut call, network);
        }
        put_network(&mut call, network);
        self.put_devices(&mut call, true, true);
        if image.is_none() {
            self.put_shown(&mut call, is_covered);
        }
        put(&mut call, &["--mqueue", "/dev/mqueue"]);
        for path in [folder, programs] {
            if user.is_some() {
                // Only the user who makes the folders above could enter them otherwise.
                put_parents(&mut call, path);
            }
            call.extend(["--ro-bind".into(), path.into(), path.into()]);
        }
        for path in places {
            call.extend(["--bind".into(), path.into(), path.into()]);
        }
        if let Some(secrets) = secrets {
            call.extend(secrets.arguments());
        }
        let start = if image.is_some() {
            put_libraries(&mut call)
        } else {
            self.put_hidden_read_only(&mut call);
            Vec::new()
        };
        // What root puts into `/dev` would stay for the next build. Mounts below it stay as they are.
        put(&mut call, &["--remount-ro", "/dev"]);
        if image.is_none_or(|image| image.writable_bytes.is_none()) {
            put(&mut call, &["--remount-ro", "/"]);
        }
        put(&mut call, &["--chdir", "/", "--"]);
        call.extend(start);
        Ok(call)
    }

    /// The command line for a program of the worker. It can write in this folder only; all else, also behind links, is read-only.
    pub fn writing_in(&self, folder: &Path) -> Result<Vec<OsString>, SandboxError> {
        let mut call = vec![self.find()?.into_os_string()];
        put(&mut call, &["--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--die-with-parent"]);
        bind(&mut call, folder, &folder.to_string_lossy());
        // It must not mount the rest writable again.
        put(&mut call, &["--cap-drop", "CAP_SYS_ADMIN", "--cap-drop", "CAP_SYS_PTRACE", "--"]);
        Ok(call)
    }

    fn put_filter(&self, call: &mut Call) {
        if self.filter {
            for descriptor in shim::FILTER_DESCRIPTORS {
                put(call, &["--add-seccomp-fd", &descriptor.to_string()]);
            }
        }
    }

    fn begin(&self, network: SlotNetwork<'_>) -> Result<Call, SandboxError> {
        let mut call = vec![self.find()?.into_os_string()];
        put(&mut call, &["--unshare-pid", "--unshare-ipc", "--unshare-uts"]);
        put_network(&mut call, network);
        put(&mut call, &["--hostname", "forebay", "--die-with-parent"]);
        Ok(call)
    }

    fn put_devices(&self, call: &mut Call, tmp: bool, as_root: bool) {
        put(call, &["--proc", "/proc", "--dev", "/dev"]);
        for (name, ..) in NODES {
            if let Some(nodes) = &self.nodes {
                call.extend([
                    "--dev-bind".into(),
                    nodes.join(name).into(),
                    Path::new("/dev").join(name).into(),
                ]);
            }
        }
        put_proc_masks(call, as_root);
        for folder in ["/dev/shm", "/tmp"].into_iter().filter(|folder| tmp || *folder != "/tmp") {
            put(call, &["--perms", "1777"]);
            if let Some(bytes) = self.tmp_bytes_max {
                put(call, &["--size", &bytes.clamp(1, SIZE_MOST).to_string()]);
            }
            put(call, &["--tmpfs", folder]);
        }
    }
}
