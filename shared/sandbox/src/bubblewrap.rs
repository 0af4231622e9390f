//! Builds the command lines of bubblewrap.

use std::borrow::Cow;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use invariant::impossible;
use nix::unistd::{AccessFlags, access};
use shim::User;

use crate::error::SandboxError;
use crate::image_root::ImageRoot;
use crate::loader::put_libraries;
use crate::own_parts::OwnParts;
use crate::private::private;

/// The folder that contains the input root, as commands see it.
pub const INSIDE: &str = "/forebay";
/// The input root, for a command in its own sandbox.
pub(crate) const INSIDE_ROOT: &str = "/forebay/root";
/// The private folders that are emptied between the commands of a kept sandbox.
pub(crate) const PRIVATE: [&str; 3] = ["/tmp", "/dev/shm", "/dev/mqueue"];
/// Paths of the host that are visible by default.
const SYSTEM: [&str; 10] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/sys"];

/// Folders that the private ones of a sandbox cover: what is shown or hidden below them is mounted after these.
const COVERED: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// The file with the names of machines.
const HOSTS: &str = "/etc/hosts";

/// Settings of the programs of the machine, among them private ones.
const SETTINGS: &str = "/etc";

/// Passwords and keys of the machine: a worker that is root could read them inside, too.
const SECRETS: [&str; 8] = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/etc/forebay",
];

/// Files of `/proc` about the memory, keys and timers of the machine.
const MASKED_FILES: [&str; 5] =
    ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats"];
/// Folders of `/proc` about its disks and its power supply.
const MASKED_FOLDERS: [&str; 2] = ["/proc/scsi", "/proc/acpi"];
/// The right of other users to read a file.
const OTHERS_READ: u32 = 0o004;
/// Settings of the kernel in `/proc`. The user root may write them without any capability.
const READ_ONLY: [&str; 5] = ["/proc/sys", "/proc/bus", "/proc/irq", "/proc/fs", "/proc/sysrq-trigger"];

/// The largest size of a file system in memory that bubblewrap accepts.
const SIZE_MOST: u64 = i64::MAX.unsigned_abs();

/// How to start bubblewrap, and which parts of the host are visible.
#[derive(Debug, Clone)]
pub struct Bubblewrap {
    /// Its name or path; a name is searched in `PATH`.
    pub program: PathBuf,
    /// The files and folders of the host that commands can read. Missing paths are left out; a symbolic
    /// link stays a link.
    pub read_only: Vec<PathBuf>,
    /// Files that commands cannot read, and folders that they see as empty, although they are below one of
    /// `read_only`: the data folder.
    pub hidden: Vec<PathBuf>,
    /// Whether system calls are refused that only few programs need and most escapes use.
    pub filter: bool,
    /// Maximum bytes in `/tmp` and in `/dev/shm`, each of which is in memory; half of the machine's memory if absent.
    pub tmp_bytes_max: Option<u64>,
}

impl Default for Bubblewrap {
    fn default() -> Self {
        let read_only = SYSTEM.map(PathBuf::from).to_vec();
        let hidden = SECRETS.map(PathBuf::from).to_vec();
        Self { program: "bwrap".into(), read_only, hidden, filter: true, tmp_bytes_max: None }
    }
}

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

/// A command line of bubblewrap, without the program to execute.
pub(crate) type Call = Vec<OsString>;

impl Bubblewrap {
    /// The same with more that commands can read.
    #[must_use]
    pub fn showing(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        for path in paths {
            // What is visible already, such as `/sbin`, may be a link, which can be made only once.
            if !self.read_only.iter().any(|shown| path.starts_with(shown)) {
                self.read_only.push(path);
            }
        }
        self
    }

    /// The same with more that commands do not see.
    #[must_use]
    pub fn hiding(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.hidden.extend(paths);
        self
    }

    /// The same without the settings of the machine that only the user of this process can read.
    pub(crate) fn hiding_private_settings(self) -> Self {
        let private = private(Path::new(SETTINGS), &self.read_only);
        self.hiding(private)
    }

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

    /// The path of the program.
    pub(crate) fn find(&self) -> Result<PathBuf, SandboxError> {
        // Without a current folder, absolute paths still work.
        let here = env::current_dir().unwrap_or_default();
        let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
        let folders = env::split_paths(&path).map(|folder| here.join(folder).join(&self.program));
        let named = self.program.components().count() > 1;
        let found = if named {
            Some(here.join(&self.program))
        } else {
            folders.into_iter().find(|path| path.is_file() && access(path, AccessFlags::X_OK).is_ok())
        };
        found.ok_or_else(|| SandboxError::NoBubblewrap { program: self.program.clone() })
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
        let all = self.clone().hiding_private_settings();
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

    /// Executes nothing in this sandbox: the error says what bubblewrap reported, and how to fix it.
    pub(crate) fn attempt(call: Call) -> Result<(), SandboxError> {
        let mut arguments = call.into_iter();
        let Some(program) = arguments.next() else {
            impossible!("the command line of bubblewrap is empty");
            return Ok(());
        };
        let mut command = std::process::Command::new(&program);
        while let Some(argument) = arguments.next() {
            // This call passes no descriptors.
            if argument == "--json-status-fd" || argument == "--add-seccomp-fd" {
                arguments.next();
            } else {
                command.arg(argument);
            }
        }
        let output = command.arg("/bin/true").env_clear().stdin(Stdio::null()).output();
        let output = output.map_err(|source| SandboxError::file("executing", &program, source))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let advice = advice(&said);
        Err(SandboxError::Bubblewrap { said, advice })
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

    fn put_system(&self, call: &mut Call) {
        self.put_shown(call, |path| !is_covered(path));
        // The link also leads there while the mounts are made: data folders may be below `/var/tmp`.
        put(call, &["--dir", "/var", "--dir", "/run", "--symlink", "../tmp", "/var/tmp"]);
    }

    /// What the host shows, without what is hidden in it, as far as `is_part` accepts the path.
    fn put_shown(&self, call: &mut Call, is_part: impl Fn(&Path) -> bool) {
        for path in self.read_only.iter().filter(|path| is_part(path)) {
            if let Ok(target) = fs::read_link(path) {
                call.extend(["--symlink".into(), target.into(), path.into()]);
            } else if path.exists() {
                put_parents(call, path);
                call.extend(["--ro-bind".into(), path.into(), path.into()]);
            }
        }
        self.put_masks(call, is_part);
    }

    /// The hidden files and folders, at the paths at which they would be visible. If others were hidden, commands would
    /// learn that they exist.
    fn masked(&self) -> Vec<PathBuf> {
        let shown = || self.read_only.iter().filter(|shown| fs::read_link(shown).is_err());
        let inside = |path: PathBuf| {
            shown().filter_map(move |shown| {
                let below = path.strip_prefix(shown.canonicalize().ok()?).ok()?.to_owned();
                // Without a trailing slash, which a file must not have.
                let at = within(shown, &below);
                // A private folder of the sandbox covers it already.
                (is_covered(&at) == is_covered(shown)).then_some(at)
            })
        };
        self.hidden.iter().filter_map(|path| path.canonicalize().ok()).flat_map(inside).collect()
    }

    fn put_masks(&self, call: &mut Call, is_part: impl Fn(&Path) -> bool) {
        for path in self.masked().into_iter().filter(|path| is_part(path)) {
            if path.is_dir() {
                call.extend(["--tmpfs".into(), path.into()]);
            } else {
                call.extend(["--ro-bind".into(), "/dev/null".into(), path.into()]);
            }
        }
    }

    /// After all mounts below them: nothing can be written where hidden folders are.
    fn put_hidden_read_only(&self, call: &mut Call) {
        for path in self.masked().into_iter().filter(|path| path.is_dir()) {
            call.extend(["--remount-ro".into(), path.into()]);
        }
    }

    fn put_devices(&self, call: &mut Call, tmp: bool, as_root: bool) {
        put(call, &["--proc", "/proc", "--dev", "/dev"]);
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

/// Whether a path is below a folder that a private one of the sandbox covers.
fn is_covered(path: &Path) -> bool {
    COVERED.iter().any(|own| path != Path::new(own) && path.starts_with(own))
}

/// A path below another, without a trailing slash.
pub(crate) fn within(root: &Path, path: &Path) -> PathBuf {
    root.join(path).components().collect()
}

fn put(call: &mut Call, arguments: &[&str]) {
    call.extend(arguments.iter().map(OsString::from));
}

/// The folders above a path, which other users can enter: those that bubblewrap creates for a mount are its own user's.
fn put_parents(call: &mut Call, path: &Path) {
    let mut above: Vec<&Path> = path.ancestors().skip(1).filter(|it| it.parent().is_some()).collect();
    above.reverse();
    for folder in above {
        call.extend(["--dir".into(), folder.into()]);
    }
}

/// Hides what `/proc` shows of the machine, as far as the user of the commands may be able to read it: each mount costs time.
/// Only root can write to the others, and bubblewrap protects only folders that are writable themselves.
fn put_proc_masks(call: &mut Call, as_root: bool) {
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

fn put_network(call: &mut Call, network: SlotNetwork<'_>) {
    match network {
        SlotNetwork::Own => put(call, &["--unshare-net"]),
        SlotNetwork::Host | SlotNetwork::Shared { .. } => {}
    }
}

/// How the files of an image are mounted.
fn bind_option(image: &ImageRoot) -> &'static str {
    if image.writable_bytes.is_some() { "--bind" } else { "--ro-bind" }
}

/// The files of an image, mounted by the option `how`, and of the host only what the kernel says about the machine.
fn put_image(call: &mut Call, how: &str, root: &Path, network: SlotNetwork<'_>) {
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
fn put_hosts(call: &mut Call, network: SlotNetwork<'_>) {
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

fn bind(call: &mut Call, from: &Path, to: &str) {
    call.extend(["--bind".into(), from.into(), to.into()]);
}

/// How to fix the problem that bubblewrap reported.
pub(crate) fn advice(said: &str) -> &'static str {
    let any = |parts: &[&str]| parts.iter().any(|part| said.contains(part));
    if any(&["Can't mount proc", "mount proc"]) {
        "this container hides parts of /proc: run it with /proc unmasked, or choose the sandbox `none`"
    } else if any(&["uid map", "new namespace", "unshare", "clone", "RTM_NEWADDR"]) {
        "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces, \
         kernel.apparmor_restrict_unprivileged_userns=0; in a container seccomp and CAP_SYS_ADMIN), or choose the \
         sandbox `none`"
    } else if any(&["Unknown option"]) {
        "install bubblewrap 0.8 or newer, or choose the sandbox `none`"
    } else {
        "fix that, or choose the sandbox `none`"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let bubblewrap = Bubblewrap { program: "no-such-bwrap".into(), ..Bubblewrap::default() };
        let error = bubblewrap.find().unwrap_err().to_string();
        assert!(error.contains("no-such-bwrap") && error.contains("install"), "{error}");
    }

    #[test]
    fn complaints_get_an_advice() {
        assert!(advice("bwrap: setting up uid map: Permission denied").contains("user namespaces"));
        assert!(advice("bwrap: Can't mount proc on /newroot/proc").contains("/proc unmasked"));
        assert!(advice("bwrap: Unknown option --size").contains("0.8"));
    }

    #[test]
    fn the_data_folder_is_hidden_where_it_would_show() {
        let hidden = vec!["/usr/lib".into(), "/home".into()];
        let bubblewrap = Bubblewrap { program: "/bin/true".into(), hidden, ..Bubblewrap::default() };
        let call = bubblewrap.kept(Path::new("/work"), SlotNetwork::Own).unwrap();
        let at = |text: &str| call.iter().position(|argument| argument == text);
        assert!(at("/usr/lib") > at("/usr") && at("/home").is_none(), "{call:?}");
    }

    #[test]
    fn what_is_shown_below_a_private_folder_is_mounted_after_it() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        let usual = Bubblewrap { program: "/bin/true".into(), ..Bubblewrap::default() };
        let bubblewrap = usual.showing([folder.path().to_owned(), "/tmp".into()]).hiding([data.clone()]);
        for call in [
            bubblewrap.kept(Path::new("/work"), SlotNetwork::Own).unwrap(),
            bubblewrap.alone(Alone::in_root(Path::new("/work"))).unwrap(),
        ] {
            let at = |path: &Path| call.iter().rposition(|argument| argument == path).unwrap();
            let at_tmpfs = |path: &Path| {
                call.windows(2).position(|pair| pair[0] == "--tmpfs" && pair[1] == path).unwrap()
            };
            assert!(at_tmpfs(Path::new("/tmp")) < at(folder.path()), "{call:?}");
            assert!(at_tmpfs(&data) > at(folder.path()), "{call:?}");
        }
    }

    #[test]
    fn room_is_the_least_that_is_allowed_and_what_bubblewrap_takes() {
        let usual = Bubblewrap { program: "/bin/true".into(), ..Bubblewrap::default() };
        let size = |most| {
            let call = usual.with_room(most).alone(Alone::in_root(Path::new("/work"))).unwrap();
            let at = call.iter().position(|argument| argument == "--size")?;
            call.get(at + 1)?.to_str()?.parse::<u64>().ok()
        };
        assert_eq!([size([None, None]), size([Some(9), Some(7)])], [None, Some(7)]);
        assert_eq!([size([Some(0), None]), size([None, Some(u64::MAX)])], [Some(1), Some((1 << 63) - 1)]);
    }
}
