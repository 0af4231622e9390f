//! User namespaces that map the owners of the files of a mount.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};

use crate::options::{NAMESPACE, User};

/// Number of ids that Linux has.
const IDS: u32 = u32::MAX;

/// The process of [`exchange`]: a namespace exists as long as a process or a descriptor is in it.
pub(crate) fn hold() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER)?;
    let mut output = io::stdout();
    output.write_all(b"\n")?;
    output.flush()?;
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

/// A user namespace whose maps exchange two users and their groups. Requires root.
pub(crate) fn exchange([one, other]: [User; 2]) -> io::Result<File> {
    let own = env::args_os().next().unwrap_or_default();
    let mut holder = Command::new("/proc/self/exe")
        .arg0(own)
        .args(["shim", NAMESPACE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let made = (|| {
        let mut is_there = [0];
        let output = holder.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        output.read_exact(&mut is_there)?;
        let folder = format!("/proc/{}", holder.id());
        fs::write(format!("{folder}/uid_map"), map(one.uid, other.uid))?;
        fs::write(format!("{folder}/gid_map"), map(one.gid, other.gid))?;
        File::open(format!("{folder}/ns/user"))
    })();
    // The end of its input ends it.
    drop(holder.stdin.take());
    holder.wait()?;
    made
}

/// All ids as they are, except two that are exchanged.
fn map(one: u32, other: u32) -> String {
    let (low, high) = (one.min(other), one.max(other));
    let between = |from: u32, to: u32| (from, from, to.saturating_sub(from));
    let lines = if low == high {
        vec![between(0, IDS)]
    } else {
        vec![
            between(0, low),
            (low, high, 1),
            between(low.saturating_add(1), high),
            (high, low, 1),
            between(high.saturating_add(1), IDS),
        ]
    };
    let lines = lines.into_iter().filter(|(_, _, count)| *count > 0);
    let text = |(inside, outside, count)| format!("{inside} {outside} {count}\n");
    lines.map(text).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ids_are_exchanged_and_all_others_stay() {
        assert_eq!(map(7, 7), "0 0 4294967295\n");
        let swapped = "0 0 5\n5 9 1\n6 6 3\n9 5 1\n10 10 4294967285\n";
        assert_eq!([map(5, 9), map(9, 5)], [swapped, swapped]);
        assert_eq!(map(0, 1), "0 1 1\n1 0 1\n2 2 4294967293\n");
        assert_eq!(map(0, IDS - 1), "0 4294967294 1\n1 1 4294967293\n4294967294 0 1\n");
    }
}
