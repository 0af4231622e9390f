//! What commands must not see although it lies in a folder that they see.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::support::{Kind, Place, Way};
use nix::unistd::geteuid;
use sandbox::{Bubblewrap, Network, Run, Slot, SlotConfig, make_nodes};

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
    // Commands have a `/tmp` of their own, and `/var/tmp` leads there.
    for parent in [env!("CARGO_TARGET_TMPDIR"), "/tmp", "/var/tmp"] {
        hides_a_data_folder_in(parent).await;
    }
}

async fn hides_a_data_folder_in(parent: &str) {
    let place = Place::new(Way::Kept);
    let folder = tempfile::tempdir_in(parent).unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let shown = folder.path().join("shown");
    secrets(&shown.join("data"));
    secrets(&shown.join("other"));
    symlink(shown.join("data"), place.path("link")).unwrap();
    let file = shown.join("other/settings.toml");
    let script = format!(
        "cd '{}'; cat data/deep/key data/settings.toml other/settings.toml; ls -A data; cat other/deep/key; echo x >data/x",
        shown.display()
    );
    let seen = output(&place, &shown, &[], &script).await;
    assert_eq!(seen.matches("secret").count(), 4, "{parent}: {seen}");
    // Also by another path.
    for path in [shown.join("data"), place.path("link")] {
        let seen = output(&place, &shown, &[&path, &file], &script).await;
        assert_eq!(seen.matches("secret").count(), 1, "only the other folder's in {parent}: {seen}");
        assert!(!seen.contains("deep\n") && !shown.join("data/x").exists(), "{parent}: {seen}");
    }
}

#[tokio::test]
async fn what_is_shown_below_tmp_is_no_trace_of_a_command() {
    let place = Place::new(Way::Kept);
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.path().join("shown"), "good").unwrap();
    let mut config = place.config();
    config.bubblewrap = config.bubblewrap.showing([folder.path().to_owned()]);
    let mut slot = Slot::start(config).await.unwrap();
    let before = slot.pid();
    let script = format!("cat '{}/shown'; cat /tmp/left; echo left >/tmp/left", folder.path().display());
    for _ in 0..2 {
        place.ended(&mut slot, place.script(&script)).await;
        assert_eq!(place.stdout(), "good", "{}", place.stderr());
    }
    slot.refresh().await.unwrap();
    assert_eq!(slot.pid(), before, "the sandbox is kept");
    assert_eq!(fs::read_to_string(folder.path().join("shown")).unwrap(), "good");
}

#[tokio::test]
async fn a_folder_that_the_user_of_commands_cannot_reach_is_named() {
    if !geteuid().is_root() {
        return; // Its commands run as its own user.
    }
    let place = Place::new(Way::Kept);
    let closed = tempfile::tempdir().unwrap();
    fs::set_permissions(closed.path(), Permissions::from_mode(0o700)).unwrap();
    let shown = closed.path().join("shown");
    secrets(&shown);
    let script = format!("cat '{}/deep/key'", shown.display());
    assert!(output(&place, &shown, &[], &script).await.contains("secret"), "bubblewrap runs as root");
    let mut config = place.config();
    config.bubblewrap = config.bubblewrap.showing([shown.clone()]);
    let mut slot = Slot::start(config).await.unwrap();
    let alone = Run { devices: vec!["/dev/null".into()], ..place.script(&script) };
    let failed = slot.run(alone).await.err().unwrap().to_string();
    for error in [failed, slot.check_alone().unwrap_err().to_string()] {
        let start =
            format!("user 65534 cannot enter {} on the way to {}", closed.path().display(), shown.display());
        assert!(error.starts_with(&start) && error.contains("chmod o+x"), "{error}");
    }
}

#[tokio::test]
async fn a_build_runs_in_a_folder_below_var_tmp() {
    let place = Place::new_in(Way::None, Path::new("/var/tmp"));
    let script = "echo one >file && cat file; touch /var/tmp/x && ls /tmp/x; cd ..; touch x";
    let output = place.output_of_build(&["/bin/sh", "-c", script], Network::Loopback).await;
    assert!(output.starts_with("one\n/tmp/x\n") && output.contains("Read-only"), "{output}");
    assert_eq!(fs::read_to_string(place.path("workspace/build/file")).unwrap(), "one\n");
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
    // All that this machine has, without what other tests create meanwhile; the search itself has its tests.
    let program = "
import os
for folder, _, files in (found for top in ('/etc', '/opt', '/usr/local') for found in os.walk(top)):
    for path in (os.path.join(folder, name) for name in files):
        try: of = os.stat(path); open(path).close()
        except (OSError, UnicodeError): continue
        if of.st_mode & 0o4 == 0 and '/forebay-private-' not in path: print('readable', path)
print('ok')";
    assert_eq!(Place::new(Way::Kept).output_in(Kind::Build, &["python3", "-c", program]).await, "ok\n");
}

#[tokio::test]
async fn s1_what_only_root_can_read_is_shown_where_the_settings_list_it() {
    if !geteuid().is_root() {
        return; // It cannot create a folder there.
    }
    for parent in ["/opt", "/usr/local"] {
        let folder = tempfile::Builder::new().prefix("forebay-private-").tempdir_in(parent).unwrap();
        secrets(folder.path());
        let keys = ["listed", "hidden"].map(|name| folder.path().join(name));
        for key in &keys {
            fs::write(key, "private\n").unwrap();
            fs::set_permissions(key, Permissions::from_mode(0o600)).unwrap();
        }
        let [listed, hidden] = keys.each_ref().map(|key| key.to_str().unwrap());
        let script =
            format!("exec 2>&1; cat {listed}; cat {hidden}; ls /sys/kernel/debug /sys/kernel/tracing");
        let host = Bubblewrap::default().showing([keys[0].clone()]);
        let place = Place::new(Way::None);
        let build = place.output_seeing(host.clone(), &["sh", "-c", &script], Network::Loopback).await;
        let action = Place::new(Way::Kept);
        let mut config = action.config();
        config.bubblewrap = host.hiding_private();
        config.user = None;
        let mut slot = Slot::start(config).await.unwrap();
        action.ended(&mut slot, action.script(&script)).await;
        for seen in [build, action.stdout() + &action.stderr()] {
            assert_eq!(seen.matches("private\n").count(), 1, "{parent}: {seen}");
            assert!(seen.contains(&format!("cat: {hidden}")) && !seen.contains("available"), "{seen}");
        }
    }
}

#[tokio::test]
async fn s3_the_nodes_of_devices_are_those_of_no_command() {
    let Some(nodes) = make_nodes() else {
        return; // Only root can make them.
    };
    let script = "for n in null zero full random urandom tty; do chmod 666 /dev/$n && echo changed; done
        python3 -c 'import os; os.fchmod(0, 0o666); print(\"changed\")'
        echo x >/dev/null && head -c 3 /dev/zero | wc -c && echo works";
    let host = Bubblewrap { nodes: Some(nodes), ..Bubblewrap::default() };
    let place = Place::new(Way::None);
    let build = place.output_seeing(host.clone(), &["sh", "-c", script], Network::Host).await;
    let action = Place::new(Way::Kept);
    let mut slot = Slot::start(SlotConfig { bubblewrap: host, ..action.config() }).await.unwrap();
    action.ended(&mut slot, action.script(script)).await;
    for seen in [build, action.stdout() + &action.stderr()] {
        assert!(seen.contains("works") && !seen.contains("changed"), "{seen}");
    }
}

#[tokio::test]
async fn s10_a_program_of_the_worker_writes_in_the_workspace_only() {
    let folder = tempfile::tempdir().unwrap();
    let [workspace, outside] = ["workspace", "outside"].map(|name| folder.path().join(name));
    for folder in [&workspace, &outside] {
        fs::create_dir(folder).unwrap();
    }
    symlink(&outside, workspace.join("link")).unwrap();
    let call = Bubblewrap::default().writing_in(&workspace).unwrap();
    let script = "cd \"$1\"; echo x >file; echo x >link/file; mount -o remount,rw,bind / 2>/dev/null; echo x >link/file; rm -rf link/; cat /etc/hostname >/dev/null";
    let (program, arguments) = call.split_first().unwrap();
    let mut command = std::process::Command::new(program);
    command.args(arguments).args(["sh", "-c", script, "sh"]).arg(&workspace);
    assert!(command.output().unwrap().status.success());
    assert!(workspace.join("file").exists() && outside.exists() && !outside.join("file").exists());
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
