//! Ends the processes that a test started when the test itself cannot.

use std::{
    io::Write as _,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use parking_lot::Mutex;

/// Reads the live process groups; at the end of its input it kills them and all other processes that name the folder
/// or work in it (children of `forebay up` lead their own groups), and removes the folder.
const SCRIPT: &str = r#"trap '' INT TERM HUP
groups=
while read -r what group; do
  case $what in
    +) groups="$groups $group" ;;
    -) kept=; for g in $groups; do [ "$g" = "$group" ] || kept="$kept $g"; done; groups=$kept ;;
  esac
done
for g in $groups; do kill -9 "-$g" 2>/dev/null; done
for file in $(grep -alF -- "$1/" /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null) \
    $(find /proc/[0-9]*/cwd -maxdepth 0 -lname "$1/*" 2>/dev/null); do
  pid=${file#/proc/}; pid=${pid%%/*}
  [ "$pid" = $$ ] || kill -9 "$pid" 2>/dev/null
done
[ -n "$2" ] || rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
"#;

/// A shell that briefly outlives the test. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Guard(Arc<Mutex<Shell>>);

#[derive(Debug)]
struct Shell(Child);

impl Guard {
    /// Starts a guard that finally removes `folder`, unless `FOREBAY_KEEP` is set.
    pub fn start(folder: &Path) -> Self {
        let keep = std::env::var_os("FOREBAY_KEEP").unwrap_or_default();
        let shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "farm-guard"])
            .args([folder.as_os_str(), &keep])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("the guard starts");
        Self(Arc::new(Mutex::new(Shell(shell))))
    }

    /// Adds a process group that must be killed at the end.
    pub fn add(&self, group: u32) {
        self.send('+', group);
    }

    /// Removes a process group that has ended.
    pub fn remove(&self, group: u32) {
        self.send('-', group);
    }

    fn send(&self, what: char, group: u32) {
        let mut shell = self.0.lock();
        if let Some(stdin) = shell.0.stdin.as_mut() {
            // A guard that has ended has nothing left to kill.
            let _ = writeln!(stdin, "{what} {group}");
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The guard ends when its input closes.
        drop(self.0.stdin.take());
        // How the guard ended does not matter.
        let _ = self.0.wait();
    }
}
