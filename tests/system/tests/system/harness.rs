//! The harness cleans up after itself, even when the test is killed.

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use farm::{Farm, SOON, Up, processes_naming};

use crate::check::until;

#[tokio::test]
async fn a_killed_test_leaves_nothing_behind() {
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "harness::a_test_to_be_killed", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(test.stdout.take().unwrap()).lines();
    let line = lines.map_while(Result::ok).find_map(|line| Some(line.split_once("folder=")?.1.to_owned()));
    let folder = PathBuf::from(line.unwrap());
    // Two servers, five services, `up`, its two servers and five services; not counting shims.
    let before = processes_naming(&folder);
    assert!(before.len() >= 10, "{before:?}");
    test.kill().unwrap();
    test.wait().unwrap();
    until("everything ends", SOON, || before.iter().all(|pid| !farm::alive(*pid))).await;
    until("the folder is removed", SOON, || !folder.exists()).await;
}

#[tokio::test]
#[ignore = "started, and killed, by the test above"]
async fn a_test_to_be_killed() {
    let farm = Farm::all().await;
    let _up = Up::start(farm.folder(), farm.servers.guard(), &[], &[]).await;
    println!("folder={}", farm.folder().display());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_dropped_farm_leaves_nothing_behind() {
    let farm = Farm::all().await;
    let folder = farm.folder().to_owned();
    let before = processes_naming(&folder);
    assert!(before.len() >= 5, "{before:?}");
    drop(farm);
    assert!(before.iter().all(|pid| !farm::alive(*pid)));
    assert!(!folder.exists());
}

#[test]
fn two_attempts_at_once_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let effects = farm::Effects::new(folder.path());
    let start = |attempt: &str, body: &str| {
        let command = effects.command(body);
        let (program, args) = command.split_first().unwrap();
        let mut command = Command::new(program);
        command.args(args).env("FOREBAY_BUILD_ID", "b").env("FOREBAY_ATTEMPT", attempt).spawn().unwrap()
    };
    assert!(start("1", "sleep 0.5 > /dev/null 2>&1 &").wait().unwrap().success());
    // Its command has ended, and a process that it started is still alive.
    assert!(start("2", "true").wait().unwrap().success());
    let what: Vec<String> = effects.all().into_iter().map(|effect| effect.what).collect();
    assert_eq!(what, ["start", "end", "overlap", "start", "end"]);
    assert!(std::panic::catch_unwind(|| effects.assert_sound()).is_err());
}
