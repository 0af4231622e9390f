//! How bubblewrap is set up: what commands see of the host, and what is hidden in it.

use std::fs;
use std::path::{Path, PathBuf};

use super::call::{Call, put, put_parents, within};
use crate::private::private;

/// Paths of the host that are visible by default.
const SYSTEM: [&str; 10] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/sys"];

/// Folders that the private ones of a sandbox cover: what is shown or hidden below them is mounted after these.
const COVERED: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Folders whose private files are hidden: what administrators install and configure. The others contain files of packages.
const SEARCHED: [&str; 3] = ["/etc", "/opt", "/usr/local"];

/// Passwords and keys of the machine, and what its kernel shows to root: a worker that is root could read them inside, too.
const SECRETS: [&str; 14] = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/etc/forebay",
    "/sys/firmware",
    "/sys/fs/bpf",
    "/sys/fs/pstore",
    "/sys/kernel/debug",
    "/sys/kernel/security",
    "/sys/kernel/tracing",
];

/// How to start bubblewrap, and which parts of the host are visible.
#[derive(Debug, Clone)]
pub struct Bubblewrap {
    /// Its name or path; a name is searched in `PATH`.
    pub program: PathBuf,
    /// The files and folders of the host that commands can read. Missing paths are left out; a symbolic
    /// link stays a link.
    pub read_only: Vec<PathBuf>,
    /// Files and folders below those of `read_only` that commands can read although they are private.
    pub private: Vec<PathBuf>,
    /// Files that commands cannot read, and folders that they see as empty, although they are below one of
    /// `read_only`: the data folder.
    pub hidden: Vec<PathBuf>,
    /// The folder with device nodes for commands; none: those of the machine.
    pub nodes: Option<PathBuf>,
    /// Whether system calls are refused that only few programs need and most escapes use.
    pub filter: bool,
    /// Maximum bytes in `/tmp` and in `/dev/shm`, each of which is in memory; half of the machine's memory if absent.
    pub tmp_bytes_max: Option<u64>,
}

impl Default for Bubblewrap {
    fn default() -> Self {
        let read_only = SYSTEM.map(PathBuf::from).to_vec();
        let hidden = SECRETS.map(PathBuf::from).to_vec();
        Self {
            program: "bwrap".into(),
            read_only,
            private: Vec::new(),
            hidden,
            nodes: None,
            filter: true,
            tmp_bytes_max: None,
        }
    }
}

impl Bubblewrap {
    /// The same with more that commands can read.
    #[must_use]
    pub fn showing(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        for path in paths {
            // What is visible already, such as `/sbin`, may be a link, which can be made only once.
            let is_shown = self.read_only.iter().any(|shown| path.starts_with(shown));
            if is_shown { self.private.push(path) } else { self.read_only.push(path) }
        }
        self
    }

    /// The same with more that commands do not see.
    #[must_use]
    pub fn hiding(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.hidden.extend(paths);
        self
    }

    /// The same without what the machine's administrators have installed and only the user of this process can read.
    #[must_use]
    pub fn hiding_private(self) -> Self {
        let private: Vec<_> =
            SEARCHED.iter().flat_map(|folder| private(Path::new(folder), &self.private)).collect();
        self.hiding(private)
    }

    pub(super) fn put_system(&self, call: &mut Call) {
        self.put_shown(call, |path| !is_covered(path));
        // The link also leads there while the mounts are made: data folders may be below `/var/tmp`.
        put(call, &["--dir", "/var", "--dir", "/run", "--symlink", "../tmp", "/var/tmp"]);
    }

    /// What the host shows, without what is hidden in it, as far as `is_part` accepts the path.
    pub(super) fn put_shown(&self, call: &mut Call, is_part: impl Fn(&Path) -> bool) {
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
    pub(super) fn put_hidden_read_only(&self, call: &mut Call) {
        for path in self.masked().into_iter().filter(|path| path.is_dir()) {
            call.extend(["--remount-ro".into(), path.into()]);
        }
    }
}

/// Whether a path is below a folder that a private one of the sandbox covers.
pub(super) fn is_covered(path: &Path) -> bool {
    COVERED.iter().any(|own| path != Path::new(own) && path.starts_with(own))
}
