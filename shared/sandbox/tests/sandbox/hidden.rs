//! What commands must not see although it lies in a folder that they see.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::support::{Kind, Place, Way};
use nix::unistd::geteuid;
use sandbox::{Network, Slot};

/// A folder with a file that all users of the machine can read.
fn secrets(folder: &Path) {
    fs::create_dir_all(folder.join("deep")).unwrap();
    fs::write(folder.join("deep/key"), "secret").unwrap();
    fs::write(folder.join("settings.toml"), "secret").unwrap();
    fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
}

/// Runs a script in a slot that hides `hidden`, and returns its output.
async fn output(place: &Place, shown: &Path, hidden: &[&Path], script: &str) -> String {
    let mut config = place.config();
    config.bubblewrap =
        config.bubblewrap.showing([shown.to_path_buf()]).hiding(hidden.iter().map(|path| path.to_path_buf()));
    let mut slot = Slot::start(config).await.unwrap();
    place.ended(&mut slot, place.script(script)).await;
    place.stdout() + &place.stderr()
}

#[tokio::test]
async fn a_data_folder_is_not_visible_below_a_folder_that_is() {
    let place = Place::new(Way::Kept);
    // Not below /tmp, of which commands have their own.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let shown = folder.path().join("shown");
    secrets(&shown.join("data"));
    secrets(&shown.join("other"));
    symlink(shown.join("data"), place.path("link")).unwrap();
    let file = shown.join("other/settings.toml");
    let script = format!(
        "cd {}; cat data/deep/key data/settings.toml other/settings.toml; ls -A data; cat other/deep/key; echo x >data/x",
        shown.display()
    );
    let seen = output(&place, &shown, &[], &script).await;
    assert_eq!(seen.matches("secret").count(), 4, "{seen}");
    // Also by another path.
    for path in [shown.join("data"), place.path("link")] {
        let seen = output(&place, &shown, &[&path, &file], &script).await;
        assert_eq!(seen.matches("secret").count(), 1, "only the other folder's: {seen}");
        assert!(!seen.contains("deep\n") && !shown.join("data/x").exists(), "{seen}");
    }
}

#[tokio::test]
async fn a_data_folder_below_opt_is_not_visible() {
    if !geteuid().is_root() {
        return; // It cannot create a folder there.
    }
    for parent in ["/opt", "/usr/local"] {
        let data = tempfile::Builder::new().prefix("forebay-hidden-").tempdir_in(parent).unwrap();
        secrets(data.path());
        let place = Place::new(Way::Kept);
        let script = format!("cat {}/deep/key", data.path().display());
        let shown = Path::new(parent);
        assert!(output(&place, shown, &[], &script).await.contains("secret"), "{parent}");
        assert!(!output(&place, shown, &[data.path()], &script).await.contains("secret"), "{parent}");
    }
}

#[tokio::test]
async fn s1_a_build_of_root_cannot_read_what_only_root_can() {
    if !geteuid().is_root() {
        return; // It can read as much as others.
    }
    // All that this machine has; the search itself has tests of its own.
    let program = "
import os
for folder, _, files in os.walk('/etc'):
    for path in (os.path.join(folder, name) for name in files):
        try: of = os.stat(path); open(path).close()
        except (OSError, UnicodeError): continue
        if of.st_mode & 0o4 == 0: print('readable', path)
print('ok')";
    assert_eq!(Place::new(Way::Kept).output_in(Kind::Build, &["python3", "-c", program]).await, "ok\n");
}

#[tokio::test]
async fn s1_passwords_of_the_machine_are_not_readable_even_for_root() {
    let place = Place::new(Way::None);
    let script = "cat /etc/shadow; cat /etc/passwd | head -1; echo x >/usr/x; echo y >y && echo written; mv ../build ../x; ln -s / ../y; chmod 700 /proc/1/exe";
    let output = place.output_of_build(&["/bin/sh", "-c", script], Network::Host).await;
    assert!(output.contains("root:x:0") && output.contains("written"), "{output}");
    assert!(
        !output.contains("$y$") && !output.contains("root:*") && output.contains("/etc/shadow"),
        "{output}"
    );
    assert_eq!(fs::read_to_string(place.path("workspace/build/y")).unwrap(), "y\n");
    let names: Vec<_> =
        fs::read_dir(place.path("workspace")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["build"], "its folder cannot be replaced: {output}");
    assert!(output.contains("/proc/1/exe"), "the shim's program cannot be changed: {output}");
}
