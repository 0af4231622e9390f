//! Limits apply in every mode of a shim.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::support::{finish, host, script};
use nix::unistd::geteuid;
use shim::{Cause, Exit, Files, Limit, Limits, Mode, Over, Shim};
use tempfile::TempDir;

/// Runs a script with its output discarded.
async fn limited(shim: &mut Shim, text: &str, limits: Limits) -> Exit {
    let null = || File::options().write(true).open("/dev/null").unwrap().into();
    let files = Files { stdin: None, stdout: null(), stderr: null(), wrapper: None };
    finish(shim.run_into(&script(text), files, &limits).await.unwrap()).await.exit().clone()
}

/// A program that acts as the shim where no new `/proc` can be mounted: as in containers, a part of the old one is
/// hidden from a user who is root only in a namespace.
fn without_proc(folder: &TempDir) -> PathBuf {
    let program = folder.path().join("forebay");
    let text = format!(
        "#!/bin/sh\nexec unshare --mount sh -c \
         'mount -t tmpfs none /proc/fs && exec unshare --user --map-root-user \"{}\" \"$@\"' sh \"$@\"\n",
        host().display()
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    program
}

#[tokio::test]
async fn limits_hold_where_no_new_proc_can_be_mounted() {
    if !geteuid().is_root() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let mut shim = Shim::start(&without_proc(&folder)).await.unwrap();
    assert_eq!(shim.mode(), Mode::PidNamespace);
    let processes = Limits { processes: Some(3), ..Limits::default() };
    let exit = limited(&mut shim, "sleep 1000 & sleep 1000 & sleep 1000 & sleep 1000", processes).await;
    let over =
        matches!(exit.cause, Cause::OverLimit(Over { limit: Limit::Processes, allowed: 3, used: 4 | 5 }));
    assert!(over, "{exit:?}");
    let memory = Limits { memory_bytes: Some(50 << 20), ..Limits::default() };
    let exit = limited(&mut shim, "exec dd if=/dev/zero of=/dev/null bs=100M", memory).await;
    assert!(matches!(exit.cause, Cause::OverLimit(Over { limit: Limit::Memory, .. })), "{exit:?}");
    // A command within its limits is not affected by other processes on the machine.
    let all = Limits { cpu: Some(Duration::from_secs(5)), ..memory };
    let exit = limited(&mut shim, "sleep 0.2; exit 4", all).await;
    assert_eq!((exit.exit_code, exit.cause), (Some(4), Cause::Ended));
}

#[tokio::test]
async fn what_the_shim_itself_uses_is_told() {
    let mut shim = crate::support::shim(None).await;
    let before = shim.own_cpu().unwrap();
    let exit =
        limited(&mut shim, "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done", Limits::default()).await;
    let own = shim.own_cpu().unwrap().checked_sub(before).unwrap();
    assert!(exit.cpu > Duration::from_millis(50) && own < exit.cpu / 2, "{own:?} of {exit:?}");
    shim.end().await.unwrap();
    assert_eq!(shim.own_cpu(), None);
}

#[tokio::test]
async fn a_shim_that_has_settled_knows_what_a_dropped_command_left() {
    let mut shim = crate::support::shim(None).await;
    let mut life = crate::support::Life::new();
    let mut running = shim.run(&script(&format!("{} echo up; sleep 1000", life.hold()))).await.unwrap();
    crate::support::output(&mut running, 3).await;
    drop(running);
    shim.settle().await.unwrap();
    assert!(!life.is_held());
    // There is nothing left to wait for.
    shim.settle().await.unwrap();
    shim.end().await.unwrap();
    shim.settle().await.unwrap();
}
